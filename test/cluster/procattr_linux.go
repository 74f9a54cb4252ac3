package cluster

import "syscall"

// childAttributes puts a child into its own process group, so that Ctrl-C reaches only its parent, and makes the kernel
// kill it when the thread that started it ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
