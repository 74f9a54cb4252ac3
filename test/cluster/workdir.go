package cluster

import (
	"os"
	"path/filepath"
	"syscall"
)

const workDirPattern = "nsp-cluster-"

// workDir is a temporary directory that is locked while its owner lives, so that a later run can tell and remove what a
// killed one left.
type workDir struct {
	path string
	lock *os.File
}

func newWorkDir() (*workDir, error) {
	removeAbandoned()
	path, err := os.MkdirTemp("", workDirPattern)
	if err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, err
	}
	return &workDir{path: path, lock: lock}, nil
}

func (w *workDir) remove() {
	_ = os.RemoveAll(w.path)
	w.lock.Close()
}

// removeAbandoned removes the work directories that nobody locks. One that has no credentials yet may be about to be
// locked by another process, so it stays.
func removeAbandoned() {
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), workDirPattern+"*", "tokens.csv"))
	for _, path := range paths {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			continue
		}
		if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir.Name())
		}
		dir.Close()
	}
}
