package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

func (d *database) write(ctx context.Context, b registry.Batch) error {
	for _, k := range b.Delete {
		st := k.Stream
		if _, err := d.delete.ExecContext(ctx, k.Addrs, st.Name, st.Conduit, st.Trench, st.Namespace, k.Scope, k.Type); err != nil {
			return err
		}
	}
	for _, e := range b.Put {
		if err := d.putEntry(ctx, e); err != nil {
			return err
		}
	}
	for name, data := range b.Documents {
		if err := d.writeDocument(ctx, name, data); err != nil {
			return err
		}
	}
	return nil
}

func (d *database) putEntry(ctx context.Context, e *registry.Entry) error {
	ips, err1 := json.Marshal(e.IPs)
	context, err2 := json.Marshal(e.Context)
	memory, err3 := json.Marshal(e.Memory)
	peer, err4 := e.Caller.Peer.MarshalText()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	_, err := d.put.ExecContext(ctx, int64(e.ID), e.Scope, e.Type, e.Stream.Namespace, e.Stream.Trench, e.Stream.Conduit,
		e.Stream.Name, e.Addrs, string(ips), string(context), e.Status, e.Blocked, e.Reserved, string(peer), e.Caller.PodUID, string(memory))
	return err
}

func (d *database) writeDocument(ctx context.Context, name string, data []byte) error {
	if data == nil {
		_, err := d.deleteDoc.ExecContext(ctx, name)
		return err
	}
	_, err := d.putDoc.ExecContext(ctx, name, data)
	return err
}

func (d *database) load(ctx context.Context, log *slog.Logger) (registry.Saved, error) {
	saved := registry.Saved{Documents: map[string][]byte{}}
	bad, err := d.loadEntries(ctx, &saved)
	if err != nil {
		return registry.Saved{}, err
	}
	var last uint64
	if err := d.conn.QueryRowContext(ctx, selectSequence).Scan(&last); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return registry.Saved{}, err
	}
	saved.NextID = last + 1
	if err := d.loadDocuments(ctx, saved.Documents); err != nil {
		return registry.Saved{}, err
	}
	for id, why := range bad {
		log.WarnContext(ctx, "a stored registration is unreadable and dropped", "id", id, "error", why)
		if _, err := d.deleteRow.ExecContext(ctx, id); err != nil {
			return registry.Saved{}, err
		}
	}
	return saved, nil
}

// loadEntries adds the entries; rows whose values make no sense are returned by ID.
func (d *database) loadEntries(ctx context.Context, saved *registry.Saved) (map[int64]error, error) {
	rows, err := d.conn.QueryContext(ctx, selectEntries)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	bad := map[int64]error{}
	for rows.Next() {
		var r row
		e := &r.Entry
		err := rows.Scan(&r.id, &e.Scope, &e.Type, &e.Stream.Namespace, &e.Stream.Trench, &e.Stream.Conduit, &e.Stream.Name,
			&e.Addrs, &r.ips, &r.context, &e.Status, &e.Blocked, &e.Reserved, &r.peer, &e.Caller.PodUID, &r.memory)
		if err == nil {
			err = r.decode()
		}
		if err != nil {
			bad[r.id] = err
			continue
		}
		saved.Entries = append(saved.Entries, e)
	}
	return bad, rows.Err()
}

func (d *database) loadDocuments(ctx context.Context, documents map[string][]byte) error {
	rows, err := d.conn.QueryContext(ctx, selectDocuments)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var data []byte
		if err := rows.Scan(&name, &data); err != nil {
			return err
		}
		if data == nil { // empty is not the same as removed
			data = []byte{}
		}
		documents[name] = data
	}
	return rows.Err()
}

// row is an entry with the columns that are not stored as they are.
type row struct {
	registry.Entry
	id                         int64
	ips, context, peer, memory []byte
}

func (r *row) decode() error {
	r.ID = uint64(r.id)
	var err error
	if len(r.peer) > 0 {
		r.Caller.Peer, err = netip.ParseAddr(string(r.peer))
	}
	return errors.Join(err,
		json.Unmarshal(r.ips, &r.IPs), json.Unmarshal(r.context, &r.Context), json.Unmarshal(r.memory, &r.Memory))
}
