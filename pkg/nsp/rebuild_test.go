package nsp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

// A loss counts until it is made up for, also over a restart in between.
func TestRebuilding(t *testing.T) {
	for name, tt := range map[string]struct {
		saved registry.Saved
		want  bool
	}{
		"new file":     {registry.Saved{}, false},
		"lost":         {registry.Saved{Lost: true}, true},
		"lost earlier": {registry.Saved{Documents: map[string][]byte{rebuildingDocument: {}}}, true},
		"whole":        {registry.Saved{Documents: map[string][]byte{"configmap/trench-a": {}}}, false},
	} {
		require.Equal(t, tt.want, (&process{saved: tt.saved}).rebuilding(), name)
	}
}
