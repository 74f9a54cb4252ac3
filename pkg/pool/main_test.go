package pool

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// The default of 100 checks misses rules that need several events to meet; a flag of the caller wins.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "400")
	goleak.VerifyTestMain(m)
}
