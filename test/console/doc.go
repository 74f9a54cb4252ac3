// Package console runs the commands that a page of the documentation shows.
//
// In a block that is marked ```console, a line that starts with "$ " is a command, up to the line that ends without a backslash.
// The lines below it are what it prints: they must occur in its output in this order, where "..." stands for anything and runs
// of blanks count as one. A command without such lines need only succeed. A block of another kind whose mark is followed by a
// file name, as ```yaml web.yaml, is written to that file. Blocks without either are not for the machine.
package console
