package relay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// Document is the name under which the store of a mirror says what it is. A process that ceases to relay removes it: the
// entries are its own registrations from there on.
const Document = "relay"

// document is kept beside the entries.
type document struct {
	// Epoch is that of the rows.
	Epoch     string
	Withdrawn []storedWithdrawal
}

type storedWithdrawal struct {
	Entry registry.Entry
	Seen  position
}

// load takes in what was stored: the rows of a mirror, or the registrations that this process had of its own, which the
// namespace process shall keep as they are.
func (m *mirror) load(saved registry.Saved, namespace string) error {
	raw, mirrored := saved.Documents[Document]
	var doc document
	var damage error
	if mirrored {
		if err := json.Unmarshal(raw, &doc); err != nil {
			// Rows count more than what was withdrawn: that comes to its end by itself.
			doc, damage = document{}, fmt.Errorf("reading what was withdrawn: %w", err)
		}
	}
	m.adopted, m.at.Epoch = mirrored, doc.Epoch
	for _, e := range saved.Entries {
		m.loadEntry(e, namespace, mirrored)
	}
	for _, w := range doc.Withdrawn {
		m.withdrawn[w.Entry.Key] = &withdrawal{entry: &w.Entry, seen: w.Seen}
	}
	damage = errors.Join(damage, m.loadLimits(saved.Documents[LimitsDocument]))
	m.publish()
	if mirrored || len(m.rows) > 0 {
		m.open()
	}
	return damage
}

// loadEntry drops what cannot be read or is another trench's: it comes back with its next refresh.
func (m *mirror) loadEntry(stored *registry.Entry, namespace string, mirrored bool) {
	t := targetOf(stored)
	t.Scope = m.trench
	e, err := registry.EntryOf(t, stored.Caller, namespace)
	if err != nil || e.Scope != m.trench {
		m.forget = append(m.forget, stored.Key)
		return
	}
	if storedKey(e.Key) != stored.Key {
		m.forget = append(m.forget, stored.Key)
		m.dirty[e.Key] = true
	}
	e.ID, e.Status, e.Blocked, e.Reserved, e.Memory = stored.ID, stored.Status, stored.Blocked, stored.Reserved, stored.Memory
	m.set(storedRow(&e))
	if !mirrored {
		m.restore[e.Key] = true
	}
	if stored.Caller != (registry.Caller{}) {
		m.callers[e.Key] = caller{Caller: stored.Caller}
		m.leases.Renew(e.Key)
	}
}

// storedRow is what was concluded before the restart.
func storedRow(e *registry.Entry) *engine.Row {
	row := &engine.Row{
		Entry: e, State: engine.State(e.Memory.State), Reason: e.Memory.Reason, Caused: e.Memory.Caused, Pod: e.Memory.PodName,
	}
	switch {
	case e.Status != registry.Enabled || e.Type == registry.Default && e.Identifier == 0:
		row.State = engine.Inactive
	case row.State == engine.Pending:
		row.State = engine.Active
	}
	return row
}

// storedKey is the key of an entry in a registry that is one trench's own: what has no stream has no scope there.
func storedKey(k registry.Key) registry.Key {
	if k.Stream.Trench == "" {
		k.Scope = ""
	}
	return k
}

// storedEntry is a row as a registry keeps it: its state is what its own engine would remember, so that the trench process can
// go on by itself. Then nothing is known of pools, and what is registered counts.
func (m *mirror) storedEntry(row *engine.Row) *registry.Entry {
	e := *row.Entry
	e.Caller = m.callers[e.Key].Caller
	e.Key = storedKey(e.Key)
	e.Memory = registry.Memory{
		PodName: row.Pod, State: uint8(row.State), Reason: row.Reason, Caused: row.Caused,
	}
	return &e
}

// unsaved is what the store does not have yet, which is taken to be stored now.
func (m *mirror) unsaved() (registry.Batch, error) {
	var b registry.Batch
	put := make(map[registry.Key]bool)
	for k := range m.dirty {
		if row := m.shown(k); row != nil {
			b.Put = append(b.Put, m.storedEntry(row))
			put[storedKey(k)] = true
		} else {
			b.Delete = append(b.Delete, storedKey(k))
		}
	}
	for _, k := range m.forget {
		if !put[k] {
			b.Delete = append(b.Delete, k)
		}
	}
	slices.SortFunc(b.Put, func(x, y *registry.Entry) int { return cmp.Compare(x.ID, y.ID) })
	b.Documents, m.documents = m.documents, make(map[string][]byte)
	if m.adopted {
		doc, err := json.Marshal(m.document())
		if err != nil {
			return registry.Batch{}, fmt.Errorf("encoding what was withdrawn: %w", err)
		}
		b.Documents[Document] = doc
	}
	clear(m.dirty)
	m.forget, m.stale = nil, false
	return b, nil
}

func (m *mirror) document() document {
	d := document{Epoch: m.at.Epoch}
	for _, w := range m.withdrawn {
		d.Withdrawn = append(d.Withdrawn, storedWithdrawal{*w.entry, w.seen})
	}
	return d
}

// keyOf is the key that is stored under k.
func (m *mirror) keyOf(k registry.Key) registry.Key {
	k.Scope = m.trench
	return k
}

// unstored says that a batch was not written after all.
func (m *mirror) unstored(b registry.Batch) {
	for _, e := range b.Put {
		m.dirty[m.keyOf(e.Key)] = true
	}
	for _, k := range b.Delete {
		m.dirty[m.keyOf(k)] = true
	}
	delete(b.Documents, Document)
	maps.Copy(b.Documents, m.documents)
	m.documents, m.stale = b.Documents, true
}

// unsavedAny tells whether the store lacks anything.
func (m *mirror) unsavedAny() bool {
	return len(m.dirty) > 0 || len(m.forget) > 0 || len(m.documents) > 0 || m.stale && m.adopted
}

// lost says that the store is empty.
func (m *mirror) lost() {
	for k := range m.rows {
		m.dirty[k] = true
	}
	if m.limits != nil {
		m.documents[LimitsDocument] = m.limits.document()
	}
	m.stale = true
}
