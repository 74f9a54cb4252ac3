// Package rules tests the alerts of the chart with Prometheus's own engine. It is a module of its own: what Prometheus depends on
// is none of the product's business.
package rules
