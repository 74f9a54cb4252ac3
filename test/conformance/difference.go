package conformance

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// answers are what a call got from a server.
type answers struct {
	// code is that of a call that the server ended.
	code codes.Code
	// lists are what a watch was told, without repetitions.
	lists []string
}

// recorded are the answers of each call in the recording.
func (t *Transcript) recorded() map[int]*answers {
	out := make(map[int]*answers)
	for _, r := range t.Records {
		if r.Call == 0 {
			continue
		}
		a := out[r.Call]
		if a == nil {
			a = &answers{}
			out[r.Call] = a
		}
		switch {
		case r.Dir == Response:
			if s, ok := r.list(); ok && (len(a.lists) == 0 || a.lists[len(a.lists)-1] != s) {
				a.lists = append(a.lists, s)
			}
		case r.Dir == End && r.By == "server":
			a.code = t.endOf(r.Call)
		}
	}
	return out
}

// list is what a response of a watch tells.
func (r *Record) list() (string, bool) {
	if isConfiguration(r.RPC) {
		s, err := renderRecorded(r)
		return s, err == nil
	}
	list := &nspv1.TargetResponse{}
	if r.RPC != Watch || r.Decode(list) != nil {
		return "", false
	}
	return render(list.GetTargets()), true
}

// Differences says, by call, how the server's answers differ from the recorded ones. Of a watch, states may be skipped, and states shown
// that this watch skipped in the recording; but every list must be one that some watch got there, and the last one the same. Where the recorded watch ended
// while writes were under way, it may have missed what they led to. (That order is kept, Run has checked.) Of the configuration, which changes
// slowly, every answer has to be the same.
func (r *Replay) Differences() map[int]string {
	out := make(map[int]string)
	recorded := r.Transcript.recorded()
	seen := make(map[string]bool)
	for _, a := range recorded {
		for _, l := range a.lists {
			seen[l] = true
		}
	}
	for call, was := range recorded {
		is := r.answers[call]
		if is == nil {
			is = &answers{}
		}
		if r.watches[call] == nil && is.lists == nil && len(was.lists) > 0 {
			continue // not served
		}
		if d := differ(was, is, r.Transcript.underWay(call), r.isConfiguration(call)); d != "" {
			out[call] = d
		} else if i := slices.IndexFunc(is.lists, func(l string) bool { return !seen[l] }); i >= 0 {
			out[call] = "a list that was never seen:\n" + is.lists[i]
		}
	}
	return out
}

func differ(was, is *answers, missed int, configuration bool) string {
	switch {
	case was.code != is.code:
		return fmt.Sprintf("%v, was %v", is.code, was.code)
	case len(was.lists) == 0 && len(is.lists) == 0:
		return ""
	case len(was.lists) == 0 || len(is.lists) == 0:
		return fmt.Sprintf("%d lists, were %d", len(is.lists), len(was.lists))
	}
	if configuration && !slices.Equal(was.lists, is.lists) {
		return fmt.Sprintf("%d answers\n%swere %d\n%s", len(is.lists), is.lists, len(was.lists), was.lists)
	}
	last := was.lists[len(was.lists)-1]
	if slices.Contains(is.lists[max(0, len(is.lists)-1-missed):], last) {
		return ""
	}
	return fmt.Sprintf("the last list is\n%swas\n%s", is.lists[len(is.lists)-1], last)
}

// underWay counts the writes that were under way when a call ended.
func (t *Transcript) underWay(call int) int {
	open := make(map[int]bool)
	for _, r := range t.Records {
		switch {
		case r.Dir == End && r.Call == call:
			return len(open)
		case r.RPC != Register && r.RPC != Unregister:
		case r.Dir == Request:
			open[r.Call] = true
		case r.Dir == End:
			delete(open, r.Call)
		}
	}
	return len(open)
}

func (r *Replay) isConfiguration(call int) bool {
	w := r.watches[call]
	return w != nil && isConfiguration(w.rpc)
}
