// Package e2e tests the product as its users meet it: on a real control plane, with the permissions that the chart gives.
package e2e

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/test/cluster"
)

// update makes the golden files what the tests see.
var update = flag.Bool("update", false, "write the golden files")

// All tests share the cluster that cluster.Get returns; each has a namespace of its own.
func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Shared(m)) }
