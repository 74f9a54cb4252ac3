package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

// The forms of an answer: for people, for people with wide screens, and for machines.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

var formats = []string{asTable, asWide, asJSON, asYAML}

// output is how a command answers.
type output struct{ format string }

func addOutput(cmd *cobra.Command) *output {
	o := &output{}
	cmd.Flags().StringVarP(&o.format, "output", "o", asTable, "one of "+strings.Join(formats, ", "))
	complete(cmd, "output", formats...)
	return o
}

func (o *output) validate() error {
	if !slices.Contains(formats, o.format) {
		return cli.Usage(fmt.Errorf("--output is %q: choose one of %s", o.format, strings.Join(formats, ", ")))
	}
	return nil
}

func (o *output) wide() bool { return o.format == asWide }

// forMachines tells whether the answer is JSON or YAML.
func (o *output) forMachines() bool { return o.format == asJSON || o.format == asYAML }

// message prints a whole answer for machines.
func (o *output) message(w io.Writer, m proto.Message) error {
	b, err := marshal(m)
	if err != nil {
		return err
	}
	return o.json(w, b)
}

// value prints an answer that is no message, likewise.
func (o *output) value(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("formatting the answer: %w", err)
	}
	return o.json(w, bytes.TrimSpace(b.Bytes()))
}

func (o *output) json(w io.Writer, b []byte) (err error) {
	var out bytes.Buffer
	if o.format == asYAML {
		b, err = yaml.JSONToYAML(b)
		out.Write(b)
	} else {
		err = json.Indent(&out, b, "", "  ")
		out.WriteByte('\n')
	}
	if err != nil {
		return fmt.Errorf("formatting the answer: %w", err)
	}
	_, err = out.WriteTo(w)
	return err
}

// event prints one of many answers for machines: a line of JSON, or a document of YAML.
func (o *output) event(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("formatting an event: %w", err)
	}
	if o.format == asYAML {
		if b, err = yaml.JSONToYAML(b); err != nil {
			return fmt.Errorf("formatting an event: %w", err)
		}
		b = append([]byte("---\n"), b...)
	} else {
		b = append(b, '\n')
	}
	_, err = w.Write(b)
	return err
}

// marshal is protojson with every field, so that scripts find false and 0 too.
func marshal(m proto.Message) (json.RawMessage, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("formatting the answer: %w", err)
	}
	return b, nil
}
