//go:build !linux

package iface

import "errors"

// openKernel has nothing to work on.
func openKernel(int) (kernel, error) {
	return nil, errors.New("the connector interface needs Linux")
}
