package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Room returns how many bytes may be written to the disk of a directory, less than 0 if there are too many
// already: a tenth of it stays free, or 10 GiB of a large one, and a tenth of its inodes.
func Room(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	if st.Files > 0 && st.Ffree < st.Files/10 { // some file systems count none
		return -1, nil
	}
	return int64(st.Bavail)*st.Bsize - min(int64(st.Blocks)*st.Bsize/10, 10<<30), nil
}
