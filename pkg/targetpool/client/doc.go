// Package client keeps the two watches of the target pool API up to date: Feed for load balancers, Assignments for the
// sidecars of targets. It links into any TAPA or load balancer: beside gRPC it imports only the API.
//
// A watch lives as long as its Run. It reconnects for ever, with full jitter, and what the receiver has stays as it is
// until the server says otherwise. These are the rules:
//
//   - Every attempt has a context of its own, derived from that of Run. No deadline outlives the attempt it was made for.
//   - Every attempt has a connection of its own, except after a refusal (see line.go for why).
//   - A server that says nothing for Config.HeartbeatTimeout, the time to connect included, is given up.
//   - A heartbeat that names another version than the one committed last means that a message was lost. The watch
//     starts anew, without resume: what the server believes to have sent cannot be asked for again.
//   - A heartbeat without a version is a sign of life and nothing else: the server has nothing to answer yet.
//   - Pieces of a snapshot or delta count when they are committed, all together. An incomplete one is thrown away.
//   - A snapshot is compared with what the receiver has, so that a handler sees differences only, also across a restart
//     of the server.
//
// Handlers run on the goroutine of Run, one call at a time, in order. A slow handler delays its own watch only; the server
// meanwhile coalesces what is to be sent. What a handler is given is shared and must not be changed.
package client
