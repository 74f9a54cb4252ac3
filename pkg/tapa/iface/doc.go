// Package iface opens streams on an interface that the pod has already, from Multus or any CNI, without NSM and without a TAPA.
//
// For as long as a stream is open, the VIPs of its trench are on a link of the pod, packets that are sent from them go to the
// gateways by a routing table of their own, and the pod is registered as a target, with an identifier that the NSP reserved.
//
// The rules:
//
//   - The kernel comes first: a target is ENABLED when it can answer, and its VIPs go only after it is unregistered.
//   - The kernel is led from what it has to what it shall have, over and over. What others made is left alone: routes and rules bear
//     a protocol number, and the VIPs that were put on the link are written down before.
//   - What is open, under which identifier, and the last configuration of the trench outlive the process, so that after a crash
//     nothing is torn down and the same identifier is claimed again.
//   - A registration is renewed every third of its lease, and looked at: where it is not ENABLED under its identifier it has expired
//     meanwhile. It is registered again, under the same identifier if that is still free and else under a new one.
//   - At the end of the process all is undone, as a TAPA of Meridio 1.x does: nobody would renew the leases.
package iface
