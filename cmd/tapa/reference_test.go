package main

import (
	"testing"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/test/reference"
)

func TestReference(t *testing.T) {
	reference.Section(t, "flags.md", "tapa", reference.Flags(newRoot(), cli.Variable))
}
