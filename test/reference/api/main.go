// Command api prints docs/reference/api.md, from an image that "buf build" makes of the protos.
package main

import (
	"fmt"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nordix/meridio-nsp/test/reference"
)

const head = `# API

The gRPC services of the NSP, of the sidecar and of resolvers, generated from the protos in ` + "`api/`" + ` by ` + "`make docs`" + `.
` + "`nsp.v1` and `ambassador.v1`" + ` are those of Meridio 1.x, by their wire format.
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give one image of buf")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("reading the image: %w", err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(data, &set); err != nil {
		return fmt.Errorf("reading the image: %w", err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return fmt.Errorf("linking the image: %w", err)
	}
	fmt.Print(head)
	for _, f := range set.GetFile() {
		if strings.HasPrefix(f.GetName(), "google/") {
			continue
		}
		if err := printFile(files, f.GetName()); err != nil {
			return err
		}
	}
	return nil
}

func printFile(files *protoregistry.Files, name string) error {
	f, err := files.FindFileByPath(name)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", name, err)
	}
	fmt.Printf("\n## %s\n\nPackage `%s`.\n", name, f.Package())
	for i := range f.Services().Len() {
		printService(f.Services().Get(i))
	}
	printMessages(f.Messages())
	printEnums(f.Enums())
	return nil
}

// comment is what stands above a declaration, or beside it, as one line.
func comment(d protoreflect.Descriptor) string {
	at := d.ParentFile().SourceLocations().ByDescriptor(d)
	return strings.Join(strings.Fields(at.LeadingComments+" "+at.TrailingComments), " ")
}

func paragraph(d protoreflect.Descriptor) {
	if text := comment(d); text != "" {
		fmt.Printf("%s\n\n", text)
	}
}

func printService(s protoreflect.ServiceDescriptor) {
	fmt.Printf("\n### Service %s\n\n", s.Name())
	paragraph(s)
	fmt.Print(reference.Head("method", "takes", "returns", "meaning"))
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		fmt.Print(reference.Row("`"+string(m.Name())+"`", flow(m.IsStreamingClient(), m.Input()), flow(m.IsStreamingServer(), m.Output()), comment(m)))
	}
}

func flow(stream bool, m protoreflect.MessageDescriptor) string {
	if stream {
		return "stream of " + string(m.Name())
	}
	return string(m.Name())
}

func printMessages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		fmt.Printf("\n### %s\n\n", nested(m))
		paragraph(m)
		if m.Fields().Len() > 0 {
			fmt.Print(reference.Head("field", "number", "type", "meaning"))
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			fmt.Print(reference.Row("`"+string(f.Name())+"`", fmt.Sprint(f.Number()), typeOf(f), comment(f)))
		}
		printMessages(m.Messages())
		printEnums(m.Enums())
	}
}

func printEnums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		e := all.Get(i)
		fmt.Printf("\n### %s (enum)\n\n", nested(e))
		paragraph(e)
		fmt.Print(reference.Head("value", "number", "meaning"))
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			fmt.Print(reference.Row("`"+string(v.Name())+"`", fmt.Sprint(v.Number()), comment(v)))
		}
	}
}

// nested is the name within the package.
func nested(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
}

func typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map of %s to %s", f.MapKey().Kind(), kindOf(f.MapValue()))
	case f.IsList():
		return "list of " + kindOf(f)
	case f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		return kindOf(f) + ", one of " + string(f.ContainingOneof().Name())
	}
	return kindOf(f)
}

func kindOf(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return string(f.Message().Name())
	case protoreflect.EnumKind:
		return string(f.Enum().Name())
	}
	return f.Kind().String()
}
