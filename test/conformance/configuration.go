package conformance

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Configured is a target that serves nsp.v1.ConfigurationManager.
type Configured interface {
	// Configure makes data the content of the trench's ConfigMap; nil deletes it.
	Configure(data map[string]string) error
	// Forget hides the ConfigMap from the process that is started next, until it is written again.
	Forget()
}

const configurationManager = "/nsp.v1.ConfigurationManager/"

func isConfiguration(rpc string) bool { return strings.HasPrefix(rpc, configurationManager) }

// message is an empty request or response of a method.
func message(rpc string, dir Direction) (proto.Message, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(rpc, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, err
	}
	m := d.(protoreflect.MethodDescriptor).Input()
	if dir == Response {
		m = d.(protoreflect.MethodDescriptor).Output()
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
	if err != nil {
		return nil, err
	}
	return t.New().Interface(), nil
}

// Message is the decoded message of a request or response.
func (r *Record) Message() (proto.Message, error) {
	m, err := message(r.RPC, r.Dir)
	if err == nil {
		err = protojson.Unmarshal(r.Msg, m)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s of call %d: %w", r.Dir, r.Call, err)
	}
	return m, nil
}

// Wire is a request or response as it was sent.
func (r *Record) Wire() ([]byte, error) {
	if b, ok := r.Raw(); ok {
		return b, nil
	}
	m, err := r.Message()
	if err != nil {
		return nil, err
	}
	return proto.Marshal(m)
}

// DecodeRequest reads the request of a call.
func DecodeRequest(rpc string, body []byte) (proto.Message, error) {
	m, err := message(rpc, Request)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	return m, err
}

// StreamOf is the name of the stream that a request is about; empty where it is about none or all.
func StreamOf(m proto.Message) string {
	if s, ok := m.(interface{ GetStream() *nspv1.Stream }); ok {
		return s.GetStream().GetName()
	}
	return ""
}

// renderAnswer writes an encoded answer so that equal ones look equal.
func renderAnswer(rpc string, body []byte) (string, error) {
	m, err := message(rpc, Response)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil {
		return "", err
	}
	return renderMessage(m), nil
}

func renderRecorded(r *Record) (string, error) {
	m, err := r.Message()
	if err != nil {
		return "", err
	}
	return renderMessage(m), nil
}

// renderMessage is the deterministic encoding, which tells absent parents from empty ones, with a readable form before it.
func renderMessage(m proto.Message) string {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return strings.Join(strings.Fields(fmt.Sprint(m)), " ") + fmt.Sprintf("\n%x\n", b)
}

// initial is the ConfigMap with which a scenario begins; nil is none.
func (t *Transcript) initial(all map[string]*Transcript) map[string]string {
	if t.Name == "config-watch" {
		return nil
	}
	var data map[string]string
	for _, r := range all["config-watch"].Records {
		if data = r.ConfigMap(); data != nil {
			break
		}
	}
	streams, flows := "items:\n", "items:\n"
	for i, name := range []string{"stream-a", "stream-b"} {
		n, ok := scenarioOf(t.Name).maxTargets[name]
		if ok {
			streams += fmt.Sprintf("- name: %s\n  conduit: conduit-a\n  max-targets: %d\n", name, n)
			flows += "- name: " + strings.Split(data["flows"], "- name: ")[i+1]
		}
	}
	data["streams"], data["flows"] = streams, flows
	if t.Name == "dual-stack" {
		data["vips"] += "- name: vip-b\n  address: 2000::1/128\n  trench: trench-a\n"
		data["flows"] = strings.ReplaceAll(data["flows"], "[vip-a]", "[vip-a, vip-b]")
		data["flows"] = strings.ReplaceAll(data["flows"], `["0.0.0.0/0"]`, `["0.0.0.0/0", "0::/0"]`)
	}
	return data
}
