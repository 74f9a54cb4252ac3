//go:build !linux

package cluster

import "syscall"

// childAttributes puts a child into its own process group, so that Ctrl-C reaches only its parent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
