// Package reference keeps docs/reference true. A test says what a section of a page has to be; it fails where the page says
// something else, and "make docs" has it written instead.
package reference
