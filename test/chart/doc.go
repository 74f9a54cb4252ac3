// Package chart renders the Helm chart of the product and installs it into a test cluster, so that what the tests and the
// demo start runs with the chart's permissions.
package chart
