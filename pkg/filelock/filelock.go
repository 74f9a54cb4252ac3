// Package filelock keeps two processes off one file.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrInUse is wrapped where another process has the file.
var ErrInUse = errors.New("in use by another process")

// Suffix names the file that is locked in place of a file. That one can be replaced under its process, and what uses it may have
// locks of its own on it, which the two kinds of locks become one of on some network file systems.
const Suffix = ".lock"

// Lock is held as long as its file is open, so a process that dies lets go.
type Lock struct{ file *os.File }

// Acquire locks a file for this process, and does not wait. The directory has to be there; the lock stays behind in it.
func Acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path+Suffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating the lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: stop that one first", ErrInUse)
		}
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return &Lock{f}, nil
}

// Release lets others have the file.
func (l *Lock) Release() { _ = l.file.Close() } // nothing was written

// InUse tells whether a process has the file, without leaving a trace.
func InUse(path string) (bool, error) {
	f, err := os.Open(path + Suffix)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
