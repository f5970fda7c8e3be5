package image

import "testing"

func TestWork(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ script, want string }{
		{"docker pull x:latest", "docker pull"},
		{"docker compose pull", "docker compose pull"},
		{"docker-compose pull", "docker-compose pull"},
		{"/usr/local/bin/docker-compose -f /srv/a.yml --profile x pull -q", "docker-compose pull"},
		{"docker-compose up -d --pull always", "docker-compose up --pull always"},
		{"docker compose up --pull=always -d", "docker compose up --pull=always"},
		{"docker -H tcp://u:p@h:1 --tlsverify image pull x", "docker image pull"},
		{"docker run --rm --pull always x", "docker run --pull always"},
		{"docker build --pull -t x .", "docker build --pull"},
		{"docker run -v /var/run/docker.sock:/var/run/docker.sock ghcr.io/nicholas-fedor/watchtower:1.2 --run-once", "docker run ghcr.io/nicholas-fedor/watchtower:1.2"},
		{"docker run -v /var/run/docker.sock:/s docker:cli docker system prune --all --force", "docker system prune --all"},
		{"docker system prune -f --volumes", "docker system prune"},
		{"docker image prune --force --all --filter until=24h", "docker image prune --all"},
		{"podman auto-update", "podman auto-update"},
		{"nerdctl -n k8s.io rmi x", "nerdctl rmi"},
		{"ctr -n moby images rm x", "ctr images rm"},
		{"crictl -r unix:///run/x rmi --prune", "crictl rmi"},
		{"docker images -q | xargs -r docker rmi -f", "docker rmi"},
		{"sudo -u root env A=b nice -n 19 timeout 10m docker pull x", "docker pull"},
		{"sh -c 'sleep 3; docker pull x'", "docker pull"},
		{"-/bin/sh -ec \"docker image \\\n rm x\"", "docker image rm"},
		{"@-/usr/bin/docker pull x", "docker pull"},
		{"if ! $DOCKER_BIN pull x; then exit 1; fi", "docker pull"},
		{"${COMPOSE:-docker-compose} pull", "docker-compose pull"},
		{"cat <<EOF\ndon't docker\nEOF\ndocker pull x", "docker pull"},
		{"sh <<-'EOF'\n\tdocker pull x\n\tEOF\n", "docker pull"},
		{"echo $((1<<2))\ndocker pull x\n", "docker pull"},
		{"if half a script (\ndocker pull x\n", "docker pull"},
		{"/opt/update-image.sh --auto", "update-image.sh"},
		{"\"$(which docker)\" pull x", "docker pull"},
		{"D=$(command -v docker); `command -v docker-compose` pull", "docker-compose pull"},
		{"docker start watchtower", "docker start watchtower"},
		{"docker load -i image.tar", "docker load"},
		{"[ -x /usr/bin/docker ] && docker pull x", "docker pull"},

		{"# docker pull x", ""},
		{"echo docker pull x", ""},
		{"logger \"docker pull x failed\"", ""},
		{"M='run docker pull x first'", ""},
		{"ssh other docker system prune -af", ""},
		{"cat <<EOF\n  docker pull x\nEOF\n", ""},
		{"docker image prune -f", ""},
		{"docker volume prune -a", ""},
		{"docker compose up -d", ""},
		{"docker compose up --pull never", ""},
		{"docker exec x apt-get pull", ""},
		{"docker stop watchtower", ""},
		{"docker start web", ""},
		{"docker run -d prom/watchtower-exporter", ""},
		{"\"", ""},
	} {
		t.Run(tt.script, func(t *testing.T) {
			t.Parallel()
			if got := Work(tt.script, nil); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
