// Command tapa is the sidecar of a target: it has the streams open that the pools of its pod and the application want.
package main

import "os"

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}
