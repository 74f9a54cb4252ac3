package server

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/config"
)

// recording is what Meridio 1.x answered to all seven watches, before, during and after changes of the ConfigMap.
const recording = "../../test/conformance/testdata/transcripts/config-watch.jsonl"

// record is one line of a recording.
type record struct {
	Call int
	RPC  string
	Dir  string
	Msg  json.RawMessage
}

func recorded(t *testing.T) (records []record) {
	f, err := os.Open(recording)
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r record
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		records = append(records, r)
	}
	require.NoError(t, lines.Err())
	return records
}

// method is how a watch is asked and answered.
type method struct {
	request  func() proto.Message
	query    func(proto.Message) query
	response func() proto.Message
}

func watchOf[Q, R proto.Message](request func() Q, of func(Q) query, response func() R) method {
	return method{
		request:  func() proto.Message { return request() },
		query:    func(m proto.Message) query { return of(m.(Q)) },
		response: func() proto.Message { return response() },
	}
}

func made[T any]() *T { return new(T) }

var methods = map[string]method{
	"WatchTrench":    watchOf(made[nspv1.Trench], queryTrench, made[nspv1.TrenchResponse]),
	"WatchConduit":   watchOf(made[nspv1.Conduit], queryConduit, made[nspv1.ConduitResponse]),
	"WatchStream":    watchOf(made[nspv1.Stream], queryStream, made[nspv1.StreamResponse]),
	"WatchFlow":      watchOf(made[nspv1.Flow], queryFlow, made[nspv1.FlowResponse]),
	"WatchVip":       watchOf(made[nspv1.Vip], queryVip, made[nspv1.VipResponse]),
	"WatchAttractor": watchOf(made[nspv1.Attractor], queryAttractor, made[nspv1.AttractorResponse]),
	"WatchGateway":   watchOf(made[nspv1.Gateway], queryGateway, made[nspv1.GatewayResponse]),
}

// Every answer of Meridio 1.x is ours at that time. The writes of the recording that are malformed in one key were ignored
// there as a whole; between them and the next good one nothing was sent.
func TestAnswersAreAsRecorded(t *testing.T) {
	var book config.Book
	queries, open := map[int]query{}, map[int]method{}
	answers, writes := 0, 0
	for _, r := range recorded(t) {
		if r.Dir == "note" {
			var note struct {
				Text      string
				ConfigMap map[string]string
			}
			require.NoError(t, json.Unmarshal(r.Msg, &note))
			switch {
			case note.ConfigMap != nil:
				writes++
				_, malformed := book.Read(note.ConfigMap)
				bad := strings.Contains(note.Text, "malformed") || strings.Contains(note.Text, "unknown field") || strings.Contains(note.Text, "negative")
				require.Equal(t, bad, len(malformed) > 0, note.Text)
			case note.Text == "the ConfigMap is deleted":
				book.Absent()
			}
			continue
		}
		name, ours := strings.CutPrefix(r.RPC, "/nsp.v1.ConfigurationManager/")
		if !ours {
			continue
		}
		switch m := methods[name]; r.Dir {
		case "req":
			req := m.request()
			require.NoError(t, protojson.Unmarshal(r.Msg, req))
			queries[r.Call], open[r.Call] = m.query(req), m
		case "resp":
			want := m.response()
			require.NoError(t, protojson.Unmarshal(r.Msg, want))
			c, _ := book.Config()
			have := resolve(c).answer(queries[r.Call])
			require.True(t, proto.Equal(want, have), "call %d, %s:\nwant %v\nhave %v", r.Call, name, want, have)
			answers++
		}
	}
	require.Equal(t, 21, writes)
	require.Greater(t, answers, 250)
	require.Greater(t, len(open), 40)
}
