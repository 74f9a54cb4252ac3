// Package nft is the data plane of the load balancer: nftables pick a target for each packet, and routes bring it there. Nothing
// is done in user space and no connection is tracked.
//
// The way from what is wanted to the kernel has three steps. Compile turns flows and streams into a Program: chains and sets, as
// data. A difference between the program and what the kernel has becomes a Transaction. The kernel takes all of a transaction or
// nothing. The first two know no kernel, so they are tested without one, by the interpreter that also answers Trace.
//
// Names tell what is what, so that a process that starts anew finds its way in the kernel and changes nothing that is right:
//
//   - Chains and sets that classify end with a digest of what they hold. Other contents are another chain.
//   - Chains that always exist bear a digest in the comment of each rule.
//   - Elements of the set "targets" name the stream and the identifier that their mark stands for.
package nft
