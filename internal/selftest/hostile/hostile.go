// Package hostile is what a job may send to its slot's Docker socket to get out
// of its slot: a table of requests, with what must come of each. kbnode selftest
// sends them to a live guard, and the guard's own tests to one in front of a
// made-up engine. Each is made so that it does no harm where it gets through.
package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Want is what must come of a request.
type Want int

const (
	// Refused is a no in the guard's own words, or the end of the connection.
	Refused Want = iota
	// Rebuilt is a container that has what policy gives and not what was asked:
	// Faults finds none.
	Rebuilt
	// Blind is an answer that tells nothing of other slots.
	Blind
)

// Request is one attack. Its texts have the names of a Target's fields in braces.
type Request struct {
	Group string
	Name  string
	Want  Want

	Method, Path, Body string
	Header             string // further lines, each with its end
	Raw                string // all that is written, instead of the above

	// Before is how many answers of success may come first: those to what the
	// attack rides on.
	Before int
	// Drip is written twice a second, for as long as there is no answer.
	Drip string
	// Patience is how long the guard may take; 0 is for one that answers at once.
	Patience time.Duration
}

// Target is what the requests aim at. Image is one that the engine has.
type Target struct {
	Image string
	// Own is a container of the slot, by ID, that was never started; Other one
	// that is not the slot's, with its name.
	Own, Other, OtherName string
	OtherGPU              string // UUID of another slot's GPU
	OtherSlice            string // another slot's slice
	OtherWork             string // another slot's directory
	Checkout              string // a directory below the slot's work root
	OutLink, OtherLink    string // links in the checkout, to / and to OtherWork
	WorkRoot              string
	Node                  string // the machine's host name
	Socket                string // the guard's
	EngineSocket          string
}

// Name is what everything is called that a request could make, if the guard let
// it: so it can be found and removed.
const Name = "kbnode-selftest"

func (t Target) fill(text string) string {
	return strings.NewReplacer(
		"{image}", t.Image, "{own}", t.Own, "{other}", t.Other, "{short}", t.Other[:min(12, len(t.Other))], "{otherName}", t.OtherName,
		"{otherGPU}", t.OtherGPU, "{otherSlice}", t.OtherSlice, "{otherWork}", t.OtherWork,
		"{checkout}", t.Checkout, "{outLink}", t.OutLink, "{otherLink}", t.OtherLink, "{workRoot}", t.WorkRoot,
		"{socket}", t.Socket, "{engine}", t.EngineSocket, "{name}", Name,
	).Replace(text)
}

// bytes are what is written to the socket.
func (r Request) bytes(t Target) string {
	if r.Raw != "" {
		return t.fill(r.Raw)
	}
	body := t.fill(r.Body)
	head := r.Method + " " + t.fill(r.Path) + " HTTP/1.1\r\nHost: docker\r\n" + t.fill(r.Header)
	if !strings.Contains(r.Header, "Upgrade") {
		head += "Connection: close\r\n"
	}
	if body != "" {
		head += "Content-Type: application/json\r\n"
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !strings.Contains(r.Header, "Transfer-Encoding") {
		head += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	return head + "\r\n" + body
}

// Requests is the whole table.
func Requests() []Request {
	return slices.Concat(texts(), privileges(), devices(), mounts(), namespaces(), limits(), extras(),
		ownContainer(), otherContainers(), engine(), paths(), wire(), clients())
}

// Answer is what came back.
type Answer struct {
	Responses []Response
	// Ended says that the guard answered or hung up, in time.
	Ended bool
}

// Response is one answer of a connection. Of its body, 64 KiB are kept at most.
type Response struct {
	Status int
	Body   []byte
	head   bool // an answer to HEAD has no body
}

// Created is the ID of the container that was made; "" for none.
func (a Answer) Created() string {
	for _, r := range a.Responses {
		var made struct {
			ID string `json:"Id"`
		}
		if r.Status == http.StatusCreated && json.Unmarshal(r.Body, &made) == nil {
			return made.ID
		}
	}
	return ""
}

// Check says what came back in a few words, and whether that is what must. Of a
// container that was made, only Faults can tell.
func (r Request) Check(a Answer, t Target) (saw string, held bool) {
	if !a.Ended {
		return "the connection stays open without an answer", false
	}
	rest := a.Responses
	for n := r.Before; n > 0 && len(rest) > 0 && rest[0].Status < 400; n-- {
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return "the connection was closed", true
	}
	for _, resp := range rest {
		saw = resp.String()
		switch {
		case resp.refusal():
			continue
		case r.Want == Rebuilt && resp.Status == http.StatusCreated:
			continue
		case r.Want == Blind && resp.Status != http.StatusSwitchingProtocols && !resp.tells(t):
			continue
		}
		return saw, false
	}
	return saw, true
}

// ownWords are how the guard's refusals begin. What the engine refuses has come
// through, and so has what it says of a container that is there.
var ownWords = []string{"kbnode: ", "No such container: "}

// protocol are what Go's HTTP server itself answers to what is no request, in
// plain text and before anybody else sees it.
var protocol = []int{
	http.StatusBadRequest, http.StatusExpectationFailed, http.StatusRequestHeaderFieldsTooLarge,
	http.StatusNotImplemented, http.StatusHTTPVersionNotSupported,
}

func (r Response) refusal() bool {
	if r.head {
		return r.Status == http.StatusForbidden || r.Status == http.StatusNotFound
	}
	message := r.message()
	if message == "" {
		return slices.Contains(protocol, r.Status)
	}
	return r.Status >= 400 && r.Status < 500 && slices.ContainsFunc(ownWords, func(w string) bool { return strings.HasPrefix(message, w) })
}

func (r Response) message() string {
	var no struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(r.Body, &no) != nil {
		return ""
	}
	return no.Message
}

// tells says that an answer names what belongs to somebody else.
func (r Response) tells(t Target) bool {
	for _, secret := range []string{t.Other, t.Other[:min(12, len(t.Other))], t.OtherName, `"Name":"` + t.Node + `"`} {
		if secret != "" && bytes.Contains(r.Body, []byte(secret)) {
			return true
		}
	}
	return false
}

// String is the answer as a person reads it.
func (r Response) String() string {
	says := r.message()
	if says == "" {
		says = string(r.Body)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.Status, text.Line(says, 120)))
}
