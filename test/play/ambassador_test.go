package play

import (
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/test/conformance"
)

var becomes = regexp.MustCompile(`^TAP API status of (.*): (.*)$`)

// The played socket counts as that of Meridio's TAPA because it lists the same statuses when the NSP answers as recorded, and says the same
// to the NSP.
func TestPlayedAmbassadorListsWhatTheRealOneLists(t *testing.T) {
	all, err := conformance.Transcripts()
	require.NoError(t, err)
	for _, c := range []struct {
		scenario, client string
		refresh          time.Duration
	}{
		{scenario: "open-one", client: "tapa-1"},
		{scenario: "open-two-streams", client: "tapa-1"},
		{scenario: "max-targets-full", client: "tapa-1"},
		{scenario: "max-targets-full", client: "tapa-3"},
		{scenario: "close", client: "tapa-1"},
		{scenario: "config-watch", client: "tapa-1"},
	} {
		t.Run(c.scenario+"/"+c.client, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playAmbassador(t, all[c.scenario], c.client, c.refresh) })
		})
	}
}

func playAmbassador(t *testing.T, tr *conformance.Transcript, client string, refresh time.Duration) {
	nsp := startRecordedNSP(t, tr, client)
	var mu sync.Mutex
	listed, recorded := map[string][]string{}, map[string][]string{}
	var a *Ambassador
	for _, r := range tr.Records {
		text := r.Note("text")
		if r.Client != client {
			continue
		}
		if m := becomes.FindStringSubmatch(text); m != nil {
			recorded[m[1]] = append(recorded[m[1]], m[2])
		}
		nsp.until(r.At())
		synctest.Wait()
		what, stream, addresses := operation(text)
		if what == "" {
			continue
		}
		if a == nil {
			a = NewAmbassador(AmbassadorConfig{
				Addresses: addresses, Refresh: refresh, Draw: nsp.draw,
				Dial: func(string) (*grpc.ClientConn, error) { return nsp.dial(), nil },
				OnStatus: func(stream, status string) {
					mu.Lock()
					defer mu.Unlock()
					listed[stream] = append(listed[stream], status)
				},
			})
			a.forget()
		}
		s := &ambassadorv1.Stream{Name: stream, Conduit: &ambassadorv1.Conduit{
			Name: "conduit-a", Trench: &ambassadorv1.Trench{Name: "trench-a"},
		}}
		do := a.Open
		if what == "close" {
			do = a.Close
		}
		_, err := do(t.Context(), s)
		require.NoError(t, err)
	}
	nsp.finish(func() { a.kill(); a.running.Wait() })
	for stream := range listed {
		listed[stream] = slices.Compact(listed[stream])
	}
	require.Equal(t, recorded, listed)
}
