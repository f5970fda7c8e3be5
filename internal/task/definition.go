package task

import "github.com/gpu-mode/kbnode/internal/payload"

// Definition returns the problem as JSON text in the form that kernelbot stores with a
// leaderboard: its files by name, with the constant Submission in place of the submission.
func (t *Task) Definition() string {
	files, config := &payload.Object{}, &payload.Object{}
	for _, f := range t.files {
		if f.submission {
			f.text = Submission
		}
		files.Set(f.name, f.text)
	}
	if t.Lang == CUDA {
		var sources []payload.Value
		for _, name := range t.compiled {
			sources = append(sources, name)
		}
		config.Set("sources", sources)
	}
	for k, v := range t.config.All() {
		config.Set(k, v)
	}
	o := &payload.Object{}
	o.Set("lang", t.Lang)
	o.Set("files", files)
	o.Set("config", config)
	o.Set("libraries", []payload.Value{})
	for k, v := range t.common.All() {
		o.Set(k, v)
	}
	return payload.JSON(o)
}
