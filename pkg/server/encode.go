package server

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// A message with a repeated field is the concatenation of its elements (https://protobuf.dev/programming-guides/encoding/), so
// each row is encoded once, as an element, and messages are put together from elements.
var (
	fieldChanges = fieldNumber(&targetpoolv1.TargetFeedWatchResponse{}, "changes")
	fieldSources = fieldNumber(&targetpoolv1.TargetFeedWatchResponse{}, "sources")
	fieldTargets = fieldNumber(&nspv1.TargetResponse{}, "targets")
)

func fieldNumber(m proto.Message, name string) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name)).Number()
}

// element encodes a message as an element of a repeated field.
func element(field protowire.Number, m proto.Message) []byte {
	size := proto.Size(m)
	b := make([]byte, 0, protowire.SizeTag(field)+protowire.SizeBytes(size))
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		// Every string here came in through protobuf or is our own, so all are valid UTF-8.
		panic(fmt.Sprintf("encoding %T: %v", m, err))
	}
	return b
}

// changeElement is a change of the feed as it goes into a message.
func changeElement(c feed.Change[uint64, engine.Item]) []byte {
	if a := c.Value.Access; a != nil {
		return a.Feed.Get(func() []byte { return element(fieldSources, wireSources(a)) })
	}
	if c.Gone {
		return element(fieldChanges, &targetpoolv1.Change{Id: c.Key})
	}
	row := c.Value.Row
	return row.Feed.Get(func() []byte {
		return element(fieldChanges, &targetpoolv1.Change{Id: c.Key, Target: target(row)})
	})
}

func wireSources(a *engine.Access) *targetpoolv1.StreamSources {
	return &targetpoolv1.StreamSources{
		Stream: wireStream(a.Stream), Unlimited: a.Sources == nil, Prefixes: a.Sources.Strings(),
	}
}

func target(r *engine.Row) *targetpoolv1.Target {
	t := &targetpoolv1.Target{
		Stream:     r.Entry.Stream.Name,
		Identifier: r.Entry.Identifier,
		State:      state(r.State),
		Reason:     r.Reason,
		Pod:        r.Pod,
		Components: wireComponents(r.Components),
	}
	for _, p := range r.Entry.Prefixes {
		t.Addresses = append(t.Addresses, p.String())
	}
	if !r.Caused.IsZero() {
		t.Caused = timestamppb.New(r.Caused)
	}
	return t
}

func wireComponents(all []pool.Component) (out []*targetpoolv1.Component) {
	for _, c := range all {
		out = append(out, wireComponent(c))
	}
	return out
}

// wireComponent is nil for none.
func wireComponent(c pool.Component) *targetpoolv1.Component {
	if c == (pool.Component{}) {
		return nil
	}
	return &targetpoolv1.Component{Cluster: c.Cluster, Namespace: c.Namespace, Service: c.Service}
}

func state(s engine.State) targetpoolv1.Target_State {
	return targetpoolv1.Target_State(s)
}

// listFrame is the answer of an nsp.v1 watch.
func listFrame(l *engine.List) frame {
	return frame{l.Wire.Get(func() []byte {
		var elements [][]byte
		for r := range l.Rows() {
			elements = append(elements, legacyElement(r))
		}
		return bytes.Join(elements, nil)
	})}
}

func legacyElement(r *engine.Row) []byte {
	return r.Legacy.Get(func() []byte { return element(fieldTargets, legacyTarget(r)) })
}

// legacyTarget echoes a registration as Meridio 1.x does: the stream is always there, with conduit and trench, also empty.
func legacyTarget(r *engine.Row) *nspv1.Target {
	e := r.Entry
	return &nspv1.Target{
		Ips:     e.IPs,
		Context: e.Context,
		Status:  nspv1.Target_Status(e.Status),
		Type:    nspv1.Target_Type(e.Type),
		Stream: &nspv1.Stream{
			Name: e.Stream.Name,
			Conduit: &nspv1.Conduit{
				Name:   e.Stream.Conduit,
				Trench: &nspv1.Trench{Name: e.Stream.Trench},
			},
		},
	}
}
