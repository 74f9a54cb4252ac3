package explain

import (
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	s1  = stream.Key{Namespace: "red", Trench: "trench-a", Conduit: "lb", Name: "s1"}
)

// healthy are facts of a pod web-0 of a Service web that takes traffic.
func healthy() Facts { return healthyIn("red") }

// healthyIn are those where pod and Service are of another namespace than the trench, which a grant permits.
func healthyIn(namespace string) Facts {
	labels := map[string]string{
		pool.LabelMarker: pool.MarkerValue, pool.LabelTrench: "trench-a", pool.LabelConduit: "lb", pool.LabelStream: "s1",
	}
	if namespace != "red" {
		labels[pool.LabelNamespace] = "red"
	}
	ref := pool.Ref{Namespace: namespace, Name: "web"}
	return Facts{
		Now: now,
		Cluster: ClusterFacts{
			Pods: []PodFacts{{
				Namespace: namespace, Name: "web-0", UID: "u0", Labels: map[string]string{"app": "web"}, IPs: []string{"10.0.0.1"},
				Account: "default", Phase: "Running", Ready: true,
			}},
			Services: []ServiceFacts{{
				Service: pool.Service{
					Ref: ref, UID: "s-web", Created: now.Add(-time.Hour), Labels: labels, Type: "ClusterIP", HasSelector: true,
					Ports: []pool.Port{{Number: 80, Target: 8080, Protocol: "TCP"}},
				},
				Selector: map[string]string{"app": "web"},
			}},
			Slices: []SliceFacts{{Marked: true, Owned: true, Slice: pool.Slice{
				Namespace: namespace, Name: "web-x", Service: "web", OwnerUID: "s-web", Version: 7, AddressType: "IPv4",
				Endpoints: []pool.Endpoint{{
					Addresses: []string{"10.0.0.1"}, Ready: new(true), Target: &pool.TargetRef{Kind: "Pod", Namespace: namespace, Name: "web-0", UID: "u0"},
				}},
			}}},
			Trenches: map[TrenchName]TrenchFacts{{"red", "trench-a"}: {Config: &config.Config{
				Streams: []config.Stream{{Name: "s1", Conduit: "lb", MaxTargets: 2}, {Name: "s2", Conduit: "lb"}},
				Flows:   []config.Flow{{Name: "f", Stream: "s1", Protocols: []string{"tcp"}, DestinationPortRanges: []string{"80-90"}}},
			}}},
			Grants: map[string]*pool.Grants{"red": pool.NewGrants([]pool.Grant{{Namespace: "blue", Trench: "trench-a"}})},
		},
		Process: ProcessFacts{
			Namespace: "red", Authorisation: "token", Answering: true,
			Namespaces: map[string]NamespaceFacts{namespace: {Synced: true, Age: 3 * time.Second}},
			Trenches:   map[string]TrenchState{"trench-a": {Read: true, MaxTargets: map[stream.Key]uint32{s1: 2}}},
			Conduits:   map[stream.Conduit]ConduitState{s1.Of(): {Open: true, Revision: 9, Targets: 1}},
			Receivers:  []Receiver{{Kind: ByFeed, Trench: "trench-a", Conduit: "lb", Peer: "10.0.1.1", Revision: 9}},
			Sidecars: []Sidecar{{
				Pod: "web-0", PodUID: "u0", Peer: "10.0.0.1", Since: now.Add(-time.Minute), Proven: true, Told: true, Streams: []stream.Key{s1},
				Addresses: []string{"172.16.0.1"}, Owners: true,
			}},
			Pools: []PoolFacts{{
				Ref: ref, UID: "s-web", Stream: s1, Accepted: true, Reason: "Accepted", Assignment: "membership", Slices: map[string]uint64{"web-x": 7},
				Members: []MemberFacts{{
					Namespace: namespace, Pod: "web-0", UID: "u0", Addresses: []string{"10.0.0.1"}, Condition: "Ready", State: "ACTIVE", Assigned: true, Watched: true,
				}},
			}},
			Targets: []TargetFacts{{
				ID: 1, Stream: s1, Addresses: []string{"172.16.0.1/24"}, Identifier: "1", Status: "ENABLED", State: "ACTIVE", Reason: "Ready",
				Caused: now.Add(-30 * time.Second), Pod: namespace + "/web-0", PodUID: "u0", Binding: "Claim", Listed: true, Peer: "10.0.0.1",
			}},
		},
	}
}

var (
	podWeb0    = Subject{Kind: Pod, Namespace: "red", Name: "web-0"}
	serviceWeb = Subject{Kind: Service, Namespace: "red", Name: "web"}
	address    = Subject{Kind: Target, Namespace: "red", Addr: netip.MustParseAddr("172.16.0.1")}
)
