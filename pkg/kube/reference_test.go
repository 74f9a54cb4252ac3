package kube

import (
	"cmp"
	"testing"

	"github.com/nordix/meridio-nsp/test/reference"
)

func TestReference(t *testing.T) {
	conditions, events := reference.Head("condition", "reason", "status", "means", "what to do"), reference.Head("reason", "means")
	for _, r := range Reasons {
		if r.Of == Event {
			events += reference.Row("`"+r.Name+"`", r.Means)
			continue
		}
		conditions += reference.Row("`"+r.Of+"`", "`"+r.Name+"`", cmp.Or(r.Status, "True or False"), r.Means, cmp.Or(r.Do, "Nothing."))
	}
	reference.Section(t, "conditions.md", "conditions", conditions)
	reference.Section(t, "conditions.md", "events", events)
}
