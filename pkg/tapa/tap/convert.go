package tap

import (
	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// Key is the full name of a stream of the TAP API, which knows one namespace only.
func Key(s *ambassadorv1.Stream, namespace string) stream.Key {
	return stream.Key{
		Namespace: namespace, Trench: s.GetConduit().GetTrench().GetName(), Conduit: s.GetConduit().GetName(), Name: s.GetName(),
	}
}

// Stream is what the TAP API calls a stream.
func Stream(k stream.Key) *ambassadorv1.Stream {
	return &ambassadorv1.Stream{
		Name: k.Name, Conduit: &ambassadorv1.Conduit{Name: k.Conduit, Trench: &ambassadorv1.Trench{Name: k.Trench}},
	}
}

// Status reads a status of the TAP API. A number that it does not have says nothing good.
func Status(s ambassadorv1.StreamStatus_Status) tapa.Status {
	if _, known := ambassadorv1.StreamStatus_Status_name[int32(s)]; !known {
		return tapa.Unavailable
	}
	return tapa.Status(s)
}

// matches tells whether a watch with this filter shows a stream: what is unset or has no name matches all, as in Meridio 1.x.
func matches(filter *ambassadorv1.Stream, k stream.Key) bool {
	one := func(want, have string) bool { return want == "" || want == have }
	return one(filter.GetName(), k.Name) && one(filter.GetConduit().GetName(), k.Conduit) &&
		one(filter.GetConduit().GetTrench().GetName(), k.Trench)
}
