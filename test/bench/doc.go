// Command bench measures the budgets of the namespace process on a real control plane, with real connections, and prints them
// beside what was asked and beside what the NSP of Meridio 1.2 does.
//
// The process under test is the nsp binary. Its clients live in processes of their own: the bench runs itself again for them
// (see client.go) and tells them what to do over a unix socket. All times are taken from one clock, that of the machine.
package main
