// Command stateless-lb is the reference load balancer of a conduit: it forwards the traffic of the conduit's flows to the targets that the
// NSP says are ready, in the kernel.
package main

import "os"

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}
