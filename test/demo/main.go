// Command demo shows, on a real control plane, how a labelled Service drives targets and load balancers. It checks what it shows.
package main

import (
	"os"

	"github.com/nordix/meridio-nsp/test/demo/stage"
)

func main() { os.Exit(stage.Main()) }
