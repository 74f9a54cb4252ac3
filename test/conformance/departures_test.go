package conformance

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page tells users of each departure and of each guarantee.
func TestThePageNamesDeparturesAndGuarantees(t *testing.T) {
	page, err := os.ReadFile("../../docs/compatibility.md")
	require.NoError(t, err)
	for _, d := range Departures {
		require.Contains(t, string(page), "| "+d.Name+" |")
	}
	for _, g := range []Guarantee{Faithful, Reliable, Ordered, Atomic, ReadYourWrites, FirstAtOnce, LastWins} {
		require.Contains(t, string(page), "| "+string(g)+" |")
	}
}
