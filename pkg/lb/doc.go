// Package lb is the reference load balancer: it hears from the NSP what to do with which traffic, and has the data plane, package nft, do
// it. What it was told last stays in force through any loss of the control plane, and in the kernel through a loss of this process.
package lb
