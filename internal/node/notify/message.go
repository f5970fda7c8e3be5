package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Events that are in no log.
const (
	kindMissed = "missed" // of those that were not sent
	kindTest   = "test"
)

// maxText bounds a sentence in characters, and with it a notification.
const maxText = 1000

// message is the JSON of a notification; docs/operations.md describes it.
type message struct {
	Schema  int       `json:"schema"`
	Node    string    `json:"node"`
	Time    time.Time `json:"time"`
	Slot    string    `json:"slot"` // "" for the node
	Event   string    `json:"event"`
	Level   string    `json:"level"`
	Check   string    `json:"check"` // whose verdict it is; "" for other events
	Message string    `json:"message"`
	Text    string    `json:"text"` // all of it, for chats
}

// mentions are what chats act on: links, and words that call all members.
var mentions = strings.NewReplacer("<", "‹", ">", "›", "@", "＠")

// encode returns the JSON of an event.
func encode(node string, e events.Event) []byte {
	m := message{Schema: 1, Node: node, Time: e.Time, Event: e.Kind, Level: e.Level, Check: e.By, Message: text.Line(e.Text, maxText)}
	where := node
	if e.Slot >= 0 {
		m.Slot = plan.SlotName(e.Slot)
		where += " " + m.Slot
	}
	m.Text = mentions.Replace(fmt.Sprintf("%s: %s (%s): %s", where, e.Kind, e.Level, m.Message))
	doc, _ := json.Marshal(m) // a time of a log has a year that JSON can write
	return append(doc, '\n')
}

// missed tells of events that were not sent.
func missed(n int) events.Event {
	return events.Event{
		Time: time.Now().UTC().Truncate(time.Second), Kind: kindMissed, Slot: -1, Level: events.Warn,
		Text: text.Count(n, "more event") + "; see kbnode events on the node",
	}
}
