package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

const (
	disabled = nspv1.Target_DISABLED
	enabled  = nspv1.Target_ENABLED
)

// a1 and b2 are targets of stream-a and stream-b.
const a1, b2 = "stream-a/1", "stream-b/2"

// good is a history as it should be: a1 is registered twice, then b2, and a watch sees all of it.
func good() (*History, *WatchRecord) {
	w := &WatchRecord{Status: nspv1.Target_ANY, Opened: 3, Open: true, Views: []*View{
		{Received: 4, Targets: map[string]Shown{a1: {1, disabled, "stream-a"}}},
		{Received: 6, Targets: map[string]Shown{a1: {2, enabled, "stream-a"}}},
		{Received: 10, Targets: map[string]Shown{a1: {2, enabled, "stream-a"}, b2: {1, disabled, "stream-b"}}},
	}}
	return &History{Watches: []*WatchRecord{w}, Writes: map[string][]*Write{
		a1: {{Began: 1, Ended: 2, Acked: true, Status: enabled}, {Began: 5, Ended: 7, Acked: true, Status: enabled}},
		b2: {{Began: 8, Ended: 9, Acked: true, Status: enabled}},
	}}, w
}

func TestCheckerAcceptsGoodHistories(t *testing.T) {
	for name, change := range map[string]func(h *History, w *WatchRecord){
		"as it is":      func(*History, *WatchRecord) {},
		"skipped state": func(_ *History, w *WatchRecord) { w.Views = []*View{w.Views[0], w.Views[2]} },
		"same twice":    func(_ *History, w *WatchRecord) { w.Views = append(w.Views, &View{11, w.Views[2].Targets}) },
		"lost but done": func(h *History, _ *WatchRecord) { h.Writes[b2][0].Acked = false },
		"lost and not done": func(h *History, w *WatchRecord) {
			h.Writes[b2][0].Acked = false
			w.Views = w.Views[:2]
		},
		"unregistered": func(h *History, w *WatchRecord) {
			h.Writes[a1] = append(h.Writes[a1], &Write{Began: 11, Ended: 12, Acked: true, Absent: true})
			w.Views = append(w.Views, &View{13, map[string]Shown{b2: {1, disabled, "stream-b"}}})
		},
		"broken without a list": func(h *History, _ *WatchRecord) {
			h.Watches = append(h.Watches, &WatchRecord{Status: nspv1.Target_ANY, Opened: 11, Broken: true})
		},
		"filtered": func(h *History, _ *WatchRecord) {
			h.Watches = append(h.Watches, &WatchRecord{Status: enabled, Opened: 3, Open: true, Views: []*View{
				{4, map[string]Shown{}}, {6, map[string]Shown{a1: {2, enabled, "stream-a"}}},
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, w := good()
			change(h, w)
			require.Empty(t, Check(h))
		})
	}
}

func TestCheckerRejectsBadHistories(t *testing.T) {
	for name, c := range map[string]struct {
		broken Guarantee
		change func(h *History, w *WatchRecord)
	}{
		"nobody's target": {Faithful, func(_ *History, w *WatchRecord) { w.Views[0].Targets["x"] = Shown{} }},
		"first one is enabled": {Faithful, func(_ *History, w *WatchRecord) {
			w.Views[0].Targets[a1] = Shown{1, enabled, "stream-a"}
		}},
		"second one is disabled": {Faithful, func(_ *History, w *WatchRecord) {
			w.Views[1].Targets[a1] = Shown{2, disabled, "stream-a"}
		}},
		"shown to the wrong watch": {Faithful, func(_ *History, w *WatchRecord) { w.Status = enabled }},
		"shown before it was":      {Reliable, func(h *History, _ *WatchRecord) { h.Writes[a1][1].Began = 7 }},
		"never a version": {Reliable, func(_ *History, w *WatchRecord) {
			w.Views[2].Targets[a1] = Shown{3, enabled, "stream-a"}
		}},
		"lost by a kill": {Reliable, func(h *History, _ *WatchRecord) {
			h.Writes[b2][0].Acked = false // shown once all the same
			h.Watches = append(h.Watches, &WatchRecord{Status: nspv1.Target_ANY, Opened: 11, Views: []*View{
				{12, map[string]Shown{a1: {2, enabled, "stream-a"}}},
			}})
		}},
		"goes back": {Ordered, func(_ *History, w *WatchRecord) {
			w.Views[0], w.Views[1] = w.Views[1], w.Views[0]
			w.Views[0].Received, w.Views[1].Received = 6, 7
		}},
		"vanishes for a moment": {Ordered, func(_ *History, w *WatchRecord) { w.Views[1].Targets = map[string]Shown{} }},
		"half a state": {Atomic, func(_ *History, w *WatchRecord) {
			w.Open = false
			w.Views[1].Received = 10
			w.Views = w.Views[:2]
			w.Views[1].Targets = map[string]Shown{a1: {1, disabled, "stream-a"}, b2: {1, disabled, "stream-b"}}
		}},
		"does not show its own": {ReadYourWrites, func(_ *History, w *WatchRecord) { w.Views[0].Targets = nil }},
		"stale": {ReadYourWrites, func(h *History, _ *WatchRecord) {
			h.Watches = append(h.Watches, &WatchRecord{Status: nspv1.Target_ANY, Opened: 9, Views: []*View{
				{10, map[string]Shown{a1: {1, disabled, "stream-a"}}},
			}})
		}},
		"nothing":        {FirstAtOnce, func(_ *History, w *WatchRecord) { w.Views = nil }},
		"not the last":   {LastWins, func(_ *History, w *WatchRecord) { w.Views = w.Views[:2] }},
		"last and least": {LastWins, func(_ *History, w *WatchRecord) { w.Views = w.Views[:1] }},
	} {
		t.Run(name, func(t *testing.T) {
			h, w := good()
			c.change(h, w)
			violations := Check(h)
			require.NotEmpty(t, violations)
			require.Equal(t, c.broken, violations[0].Guarantee, violations)
		})
	}
}
