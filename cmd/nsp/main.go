// Command nsp is the Network Service Platform of Meridio: it keeps the registry of targets, and tells sidecars which streams
// to hold and load balancers which targets take traffic.
package main

import "os"

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}
