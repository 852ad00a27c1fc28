# Sourced by the scripts that compare Regroup with its peers.

# peers_venv makes, once for each content of requirements.txt, a virtual environment under
# $XDG_CACHE_HOME/regroup with its packages and DeepSpeed, and sets `python` to its interpreter.
peers_venv() {
  local here venv
  here=$(dirname "${BASH_SOURCE[0]}")
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/regroup/peers-venv
  python=$venv/bin/python
  mkdir -p "${venv%/*}"
  (
    flock 9
    wanted=$(cat "$here/requirements.txt" "$here/venv.sh" | sha256sum | cut -c1-16)
    [[ -e $venv/done && $(<"$venv/done") == "$wanted" ]] && exit
    echo "peers_venv: downloads torch, transformers and DeepSpeed into $venv (5 GB on disk, minutes)"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
    # A source package, whose setup asks for the torch that is there. None of its operators is compiled.
    DS_BUILD_OPS=0 "$venv/bin/pip" install -q --disable-pip-version-check --no-build-isolation deepspeed==0.19.8
    echo "$wanted" >"$venv/done"
    echo "peers_venv: done in $SECONDS s"
  ) 9>"$venv.lock"
}
