package server

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one stands on
	"google.golang.org/grpc/mem"
)

// frame is a message that is encoded already, in pieces that its receivers share.
type frame [][]byte

// codec is the ordinary protobuf codec, except that it sends frames as they are: one change is encoded once, however many
// receive it.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(frame)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	out := make(mem.BufferSlice, len(f))
	for i, piece := range f {
		out[i] = mem.SliceBuffer(piece)
	}
	return out, nil
}
