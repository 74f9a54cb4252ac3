// Package tapa is the pod side of a target pool: it knows who wants which stream, and has a connector open and close them.
//
// Two may want a stream: the application, which asks by the TAP API, and the pools that the pod is a member of. A stream is
// open as long as one of them wants it. Who wants what outlives a restart (File).
//
// The rules of the Reconciler:
//
//   - One operation of a stream at a time. The next one follows from what is wanted when the one before has ended; nothing is
//     queued, so that no open runs after the close that followed it.
//   - Every attempt has a context of its own.
//   - An operation whose end is unknown may still have had its effect. So a stream counts as held from before it is opened
//     until it is known to be closed, and one that appears although nobody wants it is closed again, if this sidecar ever
//     opened it.
//   - What was asked of a connector counts for one session of its watch only: who restarted has forgotten, and is asked again.
//   - One trench at a time (Meridio's rule): those of another wait until nothing of the present one is wanted or held.
package tapa
