package conformance

import (
	"cmp"
	"strings"
	"time"
)

// scenario is what one has to know of a recorded scenario beside its file.
type scenario struct {
	// timeout is that of entries.
	timeout time.Duration
	// maxTargets are by stream.
	maxTargets map[string]uint32
}

var scenarios = map[string]scenario{
	"collision-livelock": {maxTargets: map[string]uint32{"stream-a": 2}},
	"collision-race":     {maxTargets: map[string]uint32{"stream-a": 2}},
	"max-targets-full":   {maxTargets: map[string]uint32{"stream-a": 2}},
	"evicted-reopen":     {timeout: 1500 * time.Millisecond},
	"frontend-evicted":   {timeout: 2 * time.Second},
	"ip-order":           {timeout: 3 * time.Second},
	"keepalive-idle":     {timeout: 10 * time.Minute},
}

func scenarioOf(name string) scenario {
	s := scenarios[name]
	s.timeout = cmp.Or(s.timeout, time.Minute)
	if s.maxTargets == nil {
		s.maxTargets = map[string]uint32{"stream-a": 10, "stream-b": 10}
	}
	return s
}

// fate is what a note does to the NSP.
type fate int

const (
	lives fate = iota
	killed
	started
	startedUnread // without having read the configuration
	startedEmpty
)

func fateOf(text string) fate {
	switch {
	case strings.HasPrefix(text, "NSP is killed"):
		return killed
	case strings.HasPrefix(text, "NSP starts again with an empty database"):
		return startedEmpty
	case strings.Contains(text, "it reads its configuration only"):
		return startedUnread
	case strings.HasPrefix(text, "NSP starts again"):
		return started
	default:
		return lives
	}
}
