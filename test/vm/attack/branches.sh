#!/bin/bash
# Adds branches to the repository of the rig that would plant a file where git itself checked them out.
set -eu
export GIT_AUTHOR_NAME=rig GIT_AUTHOR_EMAIL=rig@localhost GIT_COMMITTER_NAME=rig GIT_COMMITTER_EMAIL=rig@localhost
mkdir -p /root/attack
git clone -q /srv/git/kernelbot.git /root/attack/tree
cd /root/attack/tree
git checkout -q -b hostile
ln -s /etc etc
ln -s ../../../../../../../../etc/shadow shadow
mkdir held
ln -s /dev/ptmx held/passwd
printf '* filter=plant text eol=crlf ident export-subst\nREADME.md export-ignore\n' >.gitattributes
printf '[submodule "sub"]\n\tpath = sub\n\turl = ext::touch /tmp/planted\n' >.gitmodules
git add .
git update-index --add --cacheinfo "160000,$(git rev-parse HEAD),sub"
git commit -q -m hostile
git push -q origin hostile hostile:refs/heads/--upload-pack=touch

# A submodule that is updated by a command.
printf '\tupdate = !touch /tmp/planted\n' >>.gitmodules
git commit -q -a -m update
git push -q origin HEAD:refs/heads/update

# A link to /etc, and a directory of the same name with a file.
link=$(printf /etc | git hash-object -w --stdin)
file=$(echo planted | git hash-object -w --stdin)
dir=$(printf '100644 blob %s\tplanted\n' "$file" | git mktree)
tree=$(printf '120000 blob %s\ta\n040000 tree %s\ta\n' "$link" "$dir" | git mktree)
git push -q origin "$(git commit-tree -m twice "$tree"):refs/heads/twice"
