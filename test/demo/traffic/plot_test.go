package traffic

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The figure is XML, and has an area for each target and for what was lost, in each panel.
func TestFigure(t *testing.T) {
	f := Figure{
		Title: "a < b", Slice: time.Second,
		Panels: []Panel{
			{"red", Series{Took: map[int][]int{1: {3, 2}, 14: {1, 1}}, Lost: []int{0, 1}}},
			{"blue", Series{Took: map[int][]int{1: {1, 1}}, Lost: []int{4, 4}}},
			{"nothing", Series{}},
		},
		Marks: []Mark{{time.Second, `pod "web" & its end`}},
	}
	var out bytes.Buffer
	require.NoError(t, f.WriteSVG(&out))
	elements := map[string]int{}
	var texts []string
	for d := xml.NewDecoder(&out); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
	require.Equal(t, 3+1+2, elements["path"])
	require.Equal(t, 3, elements["line"])
	require.Contains(t, texts, "a < b")
	require.Contains(t, texts, `1  at 1.0 s: pod "web" & its end`)
}

// What is lost in the second of two slices is a red block over half of the width, as high as its share of the highest slice.
func TestFigureIsToScale(t *testing.T) {
	var out strings.Builder
	f := Figure{Slice: time.Second, Panels: []Panel{{"", Series{Took: map[int][]int{1: {4, 0}}, Lost: []int{0, 1}}}}}
	require.NoError(t, f.WriteSVG(&out))
	require.Contains(t, out.String(), `<path fill="#e00000" d="M560.0 290.0h500.0V232.5h-500.0z"/>`)
	require.Contains(t, out.String(), `<path fill="#4e79a7" d="M60.0 290.0h500.0V60.0h-500.0z"/>`)
}
