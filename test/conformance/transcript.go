package conformance

import (
	"bufio"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

//go:embed testdata/transcripts/*.jsonl
var recordings embed.FS

// Direction says what a record is.
type Direction string

// Directions.
const (
	Request  Direction = "req"
	Response Direction = "resp"
	End      Direction = "end"
	Note     Direction = "note"
)

// Record is one line of a transcript.
type Record struct {
	// Millis since the scenario began.
	Millis float64 `json:"t_ms"`
	// Client is who calls; the scenario itself is "rig".
	Client string `json:"client"`
	// Call numbers the calls of a file; 0 in notes.
	Call int `json:"call"`
	// RPC is the full method name.
	RPC string    `json:"rpc"`
	Dir Direction `json:"dir"`
	// Msg is a message in protojson, or a note.
	Msg json.RawMessage `json:"msg"`
	// Code and By say how a call ended, and who ended it: client or server.
	Code string `json:"code"`
	By   string `json:"by"`
	// Detail is the status message, or a reset's code.
	Detail string `json:"detail"`
}

// Methods of nsp.v1.
const (
	Register   = nspv1.TargetRegistry_Register_FullMethodName
	Unregister = nspv1.TargetRegistry_Unregister_FullMethodName
	Watch      = nspv1.TargetRegistry_Watch_FullMethodName
)

// Transcript is one recorded scenario.
type Transcript struct {
	Name    string
	Records []*Record
}

// At is when the record was made, since the scenario began.
func (r *Record) At() time.Duration { return time.Duration(r.Millis * float64(time.Millisecond)) }

// Short is the method without package and service.
func (r *Record) Short() string { return path.Base(r.RPC) }

// Note is what a note says under the key ("text", "conn", ..), or empty.
func (r *Record) Note(key string) string {
	var m map[string]any
	if r.Dir != Note || json.Unmarshal(r.Msg, &m) != nil {
		return ""
	}
	s, _ := m[key].(string)
	return s
}

// ConfigMap is the data of the ConfigMap that a note says was written; nil in others.
func (r *Record) ConfigMap() map[string]string {
	var m struct{ ConfigMap map[string]string }
	if r.Dir != Note || json.Unmarshal(r.Msg, &m) != nil {
		return nil
	}
	return m.ConfigMap
}

// Raw are the bytes where the message was none; ok tells whether it was.
func (r *Record) Raw() (raw []byte, ok bool) {
	var m struct {
		Hex *string `json:"_undecodable_hex"`
	}
	if json.Unmarshal(r.Msg, &m) != nil || m.Hex == nil {
		return nil, false
	}
	raw, err := hex.DecodeString(*m.Hex)
	return raw, err == nil
}

// Decode reads the message.
func (r *Record) Decode(into proto.Message) error {
	if err := protojson.Unmarshal(r.Msg, into); err != nil {
		return fmt.Errorf("%s of call %d: %w", r.Dir, r.Call, err)
	}
	return nil
}

// Target is the message of a record that is one.
func (r *Record) Target() *nspv1.Target {
	t := &nspv1.Target{}
	if r.Decode(t) != nil {
		return nil
	}
	return t
}

// Transcripts are all scenarios, by name.
func Transcripts() (map[string]*Transcript, error) {
	out := make(map[string]*Transcript)
	err := fs.WalkDir(recordings, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		t, err := readTranscript(p)
		if err != nil {
			return fmt.Errorf("reading %s: %w", p, err)
		}
		out[t.Name] = t
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func readTranscript(p string) (*Transcript, error) {
	f, err := recordings.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := &Transcript{Name: strings.TrimSuffix(path.Base(p), ".jsonl")}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r := &Record{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(t.Records)+1, err)
		}
		t.Records = append(t.Records, r)
	}
	return t, lines.Err()
}

// Call are the records of one call, in order.
func (t *Transcript) Call(number int) []*Record {
	var out []*Record
	for _, r := range t.Records {
		if r.Call == number {
			out = append(out, r)
		}
	}
	return out
}
