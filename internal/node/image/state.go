package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	schema    = 1
	stateName = "images.json"
	lockName  = "images.lock" // excludes other updaters
	maxState  = 1 << 20       // bytes
	// maxRefused bounds the digests, and the archives, remembered as bad.
	maxRefused = 32
)

// Image is an image that kbnode has fetched, built or loaded, or found in use.
type Image struct {
	ID     string `json:"id,omitempty"`     // "sha256:…"; "" until it is fetched
	Digest string `json:"digest,omitempty"` // at its registry; "" if it was built or loaded here
	From   string `json:"from,omitempty"`   // the reference it was fetched by; "" if it was built or loaded here
	// Archive is the SHA-256 of what it was loaded from, in hexadecimal; "" if it was not.
	Archive string    `json:"archive,omitempty"`
	Size    int64     `json:"size_bytes,omitempty"`
	Since   time.Time `json:"since"` // when it came to this node
	Canary  *Canary   `json:"canary,omitempty"`
}

// label returns what identifies the image to people.
func (i *Image) label() string {
	if i == nil {
		return "nothing"
	}
	return cmp.Or(i.Digest, i.ID)
}

// passed reports whether a canary of the image has passed.
func (i *Image) passed() bool { return i != nil && i.Canary != nil && i.Canary.Passed }

// Canary is the result of running an image once, like a job.
type Canary struct {
	Passed  bool   `json:"passed"`
	Reason  string `json:"reason,omitempty"`  // why it did not pass
	Profile string `json:"profile,omitempty"` // the job profile that it ran in
	// NotStrict is why it did not pass in the strict profile, which evaluations ask for.
	NotStrict string    `json:"not_strict,omitempty"`
	Slot      string    `json:"slot"`
	GPU       string    `json:"gpu,omitempty"`   // as the runner named it
	Torch     string    `json:"torch,omitempty"` // its version
	Seconds   float64   `json:"seconds"`
	Time      time.Time `json:"time"`
	// Uploadable reports whether it left a result that the agent would upload.
	Uploadable bool `json:"-"`
	// Computed is what it did on the GPUs that it was asked to use.
	Computed string `json:"-"`
	// Wrong reports whether a GPU gave a wrong result, of which no profile can be the reason.
	Wrong bool `json:"-"`
}

// Refusal is an image that kbnode does not use again unattended.
type Refusal struct {
	Digest string    `json:"digest"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// State is what kbnode knows of the node's images. It is written before each action, so
// that the next run can continue an interrupted one.
type State struct {
	WrittenBy string `json:"written_by"` // "kbnode"
	Schema    int    `json:"schema"`
	Name      string `json:"name"` // what jobs call the image
	// Current is the image that the name should point to; while Moving is set it may not
	// yet.
	Current   *Image    `json:"current,omitempty"`
	Moving    bool      `json:"moving,omitempty"`
	Candidate *Image    `json:"candidate,omitempty"` // the image to become current
	Previous  []Image   `json:"previous"`            // images to go back to, newest first
	Drop      []Image   `json:"drop"`                // to be removed once nothing uses them
	Refused   []Refusal `json:"refused"`             // newest first
	// Installed is the SHA-256 of the archive that an unattended Load brought last, whatever became of its image.
	Installed string `json:"installed,omitempty"`
	// RefusedArchives are the SHA-256 of archives whose image was refused or rolled back, however it came, newest first.
	RefusedArchives []string `json:"refused_archives,omitempty"`
	// RefusedLocal is why the last image that came from no registry was refused or rolled back; nil if none was.
	RefusedLocal *Failure `json:"refused_local,omitempty"`
	// Failed is why the last unattended update ended with an error; nil if it did not, or one by hand has succeeded since.
	Failed *Failure `json:"failed,omitempty"`
}

// Failure is what went wrong, and when.
type Failure struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// Rejected returns the newest refusal if it came after the current image; nil if there is none. It has no digest if the image came
// from no registry.
func (s State) Rejected() *Refusal {
	var last Refusal
	if len(s.Refused) > 0 {
		last = s.Refused[0]
	}
	if l := s.RefusedLocal; l != nil && l.Time.After(last.Time) {
		last = Refusal{Reason: l.Reason, Time: l.Time}
	}
	if last.Time.IsZero() || s.Current != nil && !last.Time.After(s.Current.Since) {
		return nil
	}
	return &last
}

// Read reads a node's state from its directory. A missing file is an empty State.
func Read(dir string) (State, error) {
	name := filepath.Join(dir, stateName)
	text, err := limit.ReadFile(name, maxState)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return empty(), nil
	case err != nil:
		return empty(), unreadable(name, err)
	}
	return parse(name, text)
}

// StandsFor returns the ID of the image that a name stands for, by the content of plan.ImagesPath; "" if kbnode does not
// keep this name, or has just begun to move it.
func StandsFor(text []byte, name string) (id string, err error) {
	s, err := parse(plan.ImagesPath, text)
	if err != nil || s.Name != name || s.Moving || s.Current == nil {
		return "", err
	}
	return s.Current.ID, nil
}

func empty() State {
	return State{WrittenBy: "kbnode", Schema: schema, Previous: []Image{}, Drop: []Image{}, Refused: []Refusal{}}
}

func unreadable(name string, err error) error {
	return fmt.Errorf("read images %s: %w; move the file away to start over", name, err)
}

func parse(name string, text []byte) (State, error) {
	s := empty()
	if err := json.Unmarshal(text, &s); err != nil {
		return s, unreadable(name, err)
	}
	if s.Schema != schema {
		return s, unreadable(name, errors.New("it was written by another version of kbnode"))
	}
	s.Moving = s.Moving && s.Current != nil // people edit the file
	return s, nil
}

// write must be called before anything is done that the state mentions. After an error nothing
// more is done.
func (s *State) write(dir string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = onHost.Store(filepath.Join(dir, stateName), string(text)+"\n")
	}
	if err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}

// onHost reads and writes files of this machine. What it writes lasts before it returns: what
// follows in the engine must not survive without it.
var onHost = &reconcile.Host{Root: "/"}

// named returns the state for this name. Images kept for another name are dropped.
func (s *State) named(name string) State {
	if s.Name == name {
		return *s
	}
	drop := append(s.Drop, s.retained()...)
	return State{WrittenBy: "kbnode", Schema: schema, Name: name, Previous: []Image{}, Drop: drop, Refused: s.Refused, RefusedArchives: s.RefusedArchives}
}

// Proven returns the IDs of the images that passed a canary, the last one first: also of those that will be removed, as all are
// once an update for another name begins.
func (s *State) Proven() (ids []string) {
	var all []Image
	if s.Current != nil {
		all = append(all, *s.Current)
	}
	all = append(all, s.Previous...)
	for _, i := range slices.Backward(s.Drop) {
		all = append(all, i)
	}
	for _, i := range all {
		bad := s.refused(i.Digest) != nil || i.Archive != "" && slices.Contains(s.RefusedArchives, i.Archive) // as after a rollback
		if i.passed() && i.ID != "" && !bad && !slices.Contains(ids, i.ID) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// chosen returns why nothing is fetched unattended; "" if it is.
func (s *State) chosen() string {
	switch {
	case s.Current == nil || s.Current.From == s.Name:
		return ""
	case s.Current.Archive != "":
		return "it came in a bundle; kbnode image update fetches it from its registry again"
	case s.Current.From == "":
		return "it was built here; kbnode image update fetches it from its registry again"
	}
	return s.Current.From + " was chosen by hand; kbnode image update without an image returns to " + s.Name
}

// refused returns why an image is not used again unattended; nil if it may be.
func (s *State) refused(digest string) *Refusal {
	if i := slices.IndexFunc(s.Refused, func(r Refusal) bool { return r.Digest == digest && digest != "" }); i >= 0 {
		return &s.Refused[i]
	}
	return nil
}

// refuse remembers an image by where it came from: one that was built here has nothing to know it by.
func (s *State) refuse(i *Image, reason string) {
	if i.Digest == "" {
		s.RefusedLocal = &Failure{reason, now()}
	}
	if i.Archive != "" {
		s.forgive(i.Archive)
		s.RefusedArchives = append([]string{i.Archive}, s.RefusedArchives[:min(len(s.RefusedArchives), maxRefused-1)]...)
	}
	if i.Digest != "" {
		rest := slices.DeleteFunc(s.Refused, func(r Refusal) bool { return r.Digest == i.Digest })
		s.Refused = append([]Refusal{{i.Digest, reason, now()}}, rest[:min(len(rest), maxRefused-1)]...)
	}
}

// forgive forgets that the image of an archive was refused.
func (s *State) forgive(archive string) {
	s.RefusedArchives = slices.DeleteFunc(s.RefusedArchives, func(a string) bool { return a == archive })
}

// pursue makes an image the candidate and drops the previous candidate.
func (s *State) pursue(i Image) {
	if c := s.Candidate; c != nil && (c.Digest != i.Digest || c.ID != i.ID && i.ID != "") {
		s.abandon()
	}
	s.Candidate = &i
}

// abandon drops the candidate.
func (s *State) abandon() {
	if s.Candidate != nil {
		s.Drop = append(s.Drop, *s.Candidate)
	}
	s.Candidate = nil
}

// take makes the candidate current. before is the image that the name points to, if kbnode
// does not know it yet.
func (s *State) take(before *Image, keep int) {
	next := s.Candidate
	same := func(i Image) bool { return i.ID == next.ID }
	before = cmp.Or(s.Current, before)
	if before != nil {
		s.Previous = append([]Image{*before}, s.Previous...)
	}
	s.Previous = slices.DeleteFunc(s.Previous, same)
	s.Refused = slices.DeleteFunc(s.Refused, func(r Refusal) bool { return r.Digest == next.Digest })
	s.forgive(next.Archive)
	s.Drop = slices.DeleteFunc(s.Drop, same)
	if len(s.Previous) > keep {
		s.Drop = append(s.Drop, s.Previous[keep:]...)
		s.Previous = s.Previous[:keep]
	}
	s.Current, s.Candidate, s.Moving = next, nil, true
}

// back makes the previous image current again and refuses the bad one.
func (s *State) back(reason string) {
	if s.Current != nil {
		s.refuse(s.Current, reason)
		s.Drop = append(s.Drop, *s.Current)
	}
	s.Current, s.Previous = &s.Previous[0], s.Previous[1:]
	s.Moving = true
}

// retained returns the images to keep.
func (s *State) retained() []Image {
	list := slices.Clone(s.Previous)
	for _, i := range []*Image{s.Current, s.Candidate} {
		if i != nil {
			list = append(list, *i)
		}
	}
	return list
}
