// Package hostile is what a job may send to its slot's Docker socket to break out of its
// slot: a table of requests, with the required outcome of each. kbnode selftest sends them
// to a live guard, and the guard's own tests to one in front of a fake engine. Each does no
// harm if it gets through.
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

// Want is the required outcome of a request.
type Want int

const (
	// Refused is a refusal in the guard's own words, or the end of the connection.
	Refused Want = iota
	// Rebuilt is a container that has what the policy gives and not what was asked: Faults
	// finds nothing.
	Rebuilt
	// Contained is one of the two, as the slot's profile has it.
	Contained
	// Blind is an answer that reveals nothing of other slots.
	Blind
)

// Request is one attack. Its texts contain names of Target's fields in braces.
type Request struct {
	Group string
	Name  string
	Want  Want

	Method, Path, Body string
	Header             string // further lines, each with its line end
	Raw                string // everything to write, instead of the above

	// Before is how many successful answers may come first, to the innocent part of the
	// attack.
	Before int
	// Drip is written twice a second until there is an answer.
	Drip string
	// Patience is how long the guard may take; 0 means 30 seconds.
	Patience time.Duration
}

// Target is what the requests aim at. The engine has Image.
type Target struct {
	Image string
	// Own is the ID of a container of the slot that was never started. Other is the ID of
	// one that is not the slot's, and OtherName its name.
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

// Name is in the name of everything that a request could create if the guard let it, so
// that it can be found and removed.
const Name = "kbnode-selftest"

func (t Target) fill(text string) string {
	return strings.NewReplacer(
		"{image}", t.Image, "{own}", t.Own, "{other}", t.Other, "{short}", t.Other[:min(12, len(t.Other))], "{otherName}", t.OtherName,
		"{otherGPU}", t.OtherGPU, "{otherSlice}", t.OtherSlice, "{otherWork}", t.OtherWork,
		"{checkout}", t.Checkout, "{outLink}", t.OutLink, "{otherLink}", t.OtherLink, "{workRoot}", t.WorkRoot,
		"{socket}", t.Socket, "{engine}", t.EngineSocket, "{name}", Name,
	).Replace(text)
}

// bytes returns what is written to the socket.
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

// Requests returns the whole table.
func Requests() []Request {
	return slices.Concat(texts(), privileges(), devices(), mounts(), namespaces(), limits(), extras(),
		ownContainer(), otherContainers(), engine(), paths(), wire(), clients())
}

// Answer is what came back.
type Answer struct {
	Responses []Response
	// Ended means that the guard answered or hung up in time.
	Ended bool
}

// Response is one answer on a connection. At most 64 KiB of its body are kept.
type Response struct {
	Status int
	Body   []byte
	head   bool // an answer to HEAD, which has no body
}

// Created returns the ID of the container that was created, or "".
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

// Check describes the answer in a few words, and reports whether it is the required one.
// Only Faults can judge a container that was created.
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
		case (r.Want == Rebuilt || r.Want == Contained) && resp.Status == http.StatusCreated:
			continue
		case r.Want == Blind && resp.Status != http.StatusSwitchingProtocols && !resp.tells(t):
			continue
		}
		return saw, false
	}
	return saw, true
}

// ownWords are the beginnings of the guard's refusals. A refusal by the engine itself means
// that the request got through, and so does what it says of an existing container.
var ownWords = []string{"kbnode: ", "No such container: "}

// protocol are the statuses with which Go's HTTP server itself answers an invalid request,
// in plain text and before any handler sees it.
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

// tells reports whether an answer names something that belongs to others.
func (r Response) tells(t Target) bool {
	for _, secret := range []string{t.Other, t.Other[:min(12, len(t.Other))], t.OtherName, `"Name":"` + t.Node + `"`} {
		if secret != "" && bytes.Contains(r.Body, []byte(secret)) {
			return true
		}
	}
	return false
}

// String formats the answer for people.
func (r Response) String() string {
	says := r.message()
	if says == "" {
		says = string(r.Body)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.Status, text.Line(says, 120)))
}
