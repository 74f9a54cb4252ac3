package tapa

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/filelock"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// State is what outlives the process. Its lists are sorted.
type State struct {
	// Application and Pool are the streams that each of them wants.
	Application, Pool []stream.Key
	// Held are those that were opened, or may have been, and are not known to be closed.
	Held []stream.Key
	// Lost is set where there is no telling: there was no file, or a damaged one.
	Lost bool
}

// Store keeps the state.
type Store interface {
	// Save returns when the state is durable.
	Save(State) error
}

// File keeps the state in a file.
type File struct {
	path string
	last []byte
	lock *filelock.Lock
}

// version of the file's format.
const version = 1

// document is the file.
type document struct {
	Version     int          `json:"version"`
	Application []stream.Key `json:"application"`
	Pool        []stream.Key `json:"pool"`
	Held        []stream.Key `json:"held"`
}

// OpenFile locks the file and reads the state. A damaged file is moved aside, and then damaged says what was wrong and where it is;
// err is for what only somebody else can repair, and wraps filelock.ErrInUse where another sidecar has the file.
func OpenFile(path string) (f *File, s State, damaged, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, s, nil, fmt.Errorf("making the directory of the state file: %w", err)
	}
	lock, err := filelock.Acquire(path)
	if errors.Is(err, filelock.ErrInUse) {
		return nil, s, nil, fmt.Errorf("the state file %s is another sidecar's, and a pod needs one only: %w, or give each its own --state-file", path, err)
	}
	if err != nil {
		return nil, s, nil, fmt.Errorf("locking the state file %s: %w", path, err)
	}
	f = &File{path: path, lock: lock}
	if s, damaged, err = f.read(); err != nil {
		f.Close()
		return nil, State{}, nil, err
	}
	return f, s, damaged, nil
}

// Close lets others have the file.
func (f *File) Close() { f.lock.Release() }

func (f *File) read() (s State, damaged, err error) {
	f.last, damaged, err = ReadFile(f.path, func(data []byte) (err error) {
		s, err = decode(data)
		return err
	})
	s.Lost = f.last == nil
	return s, damaged, err
}

func decode(data []byte) (State, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return State{}, fmt.Errorf("it is no state: %w", err)
	}
	if d.Version != version {
		return State{}, fmt.Errorf("its version is %d, not %d", d.Version, version)
	}
	for _, k := range slices.Concat(d.Application, d.Pool, d.Held) {
		if k.Trench == "" || k.Conduit == "" || k.Name == "" {
			return State{}, fmt.Errorf("the stream %q has an empty name", k.String())
		}
	}
	return State{Application: d.Application, Pool: d.Pool, Held: d.Held}, nil
}

// Save implements Store.
func (f *File) Save(s State) error {
	data, err := json.Marshal(document{version, s.Application, s.Pool, s.Held})
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	if bytes.Equal(data, f.last) {
		return nil
	}
	if err := WriteFile(f.path, data); err != nil {
		return fmt.Errorf("writing the state file: %w", err)
	}
	f.last = data
	return nil
}

// ReadFile reads what WriteFile wrote; nil is no file. One that decode does not take is moved aside, and then damaged says what was
// wrong and where it is.
func ReadFile(path string, decode func([]byte) error) (data []byte, damaged, err error) {
	data, err = os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the state file: %w", err)
	}
	if err = decode(data); err == nil {
		return data, nil, nil
	}
	aside := path + ".damaged"
	damaged = fmt.Errorf("the state file %s is damaged, it was moved to %s: %w", path, aside, err)
	if err := os.Rename(path, aside); err != nil {
		return nil, nil, fmt.Errorf("moving the damaged state file aside: %w", err)
	}
	return nil, damaged, nil
}

// WriteFile replaces a file. It writes beside it and renames, so that a kill or a full disk leaves the one before.
func WriteFile(path string, data []byte) (err error) {
	temp := path + ".new"
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the rename durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
