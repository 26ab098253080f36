#!/bin/sh
# A Python that can load PCCL's wheel where the system's cannot (Debian 12: the wheel wants a later glibc, and the library
# of a graphics driver): usage pccl-setup.sh DIR. Everything comes to lie in DIR, some 150 MB: packages of Debian 13,
# which are unpacked and not installed, the wheel pypccl by pip, and a libcuda.so.1 that has no device. Prints the name of
# the interpreter, for RG_PCCL_PYTHON. It needs apt-get, pip and gcc; it changes nothing outside DIR, and installs nothing.
set -eu
dir=${1:?usage: pccl-setup.sh DIR}
[ "$(uname -m)" = x86_64 ] || { echo "pccl-setup: the wheel is for x86_64"; exit 1; }
mkdir -p "$dir/apt/state/lists/partial" "$dir/apt/cache/archives/partial" "$dir/root" "$dir/stub"
dir=$(cd "$dir" && pwd)

# From where this machine's packages come. Debian's keys sign it, and apt's state is its own: to it nothing is installed,
# so all that is needed comes along.
from=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
[ -n "$from" ] || { echo "pccl-setup: apt knows no source of packages"; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from trixie main" > "$dir/apt/sources.list"
: > "$dir/apt/status"
apt="apt-get -q -o Dir::Etc::sourcelist=$dir/apt/sources.list -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferencesparts=/dev/null -o Dir::State=$dir/apt/state -o Dir::State::status=$dir/apt/status
    -o Dir::Cache=$dir/apt/cache -o Acquire::Languages=none -o Debug::NoLocking=1"
$apt update
$apt -y -d --no-install-recommends install python3-cffi python3-numpy libgomp1 libstdc++6
for deb in "$dir"/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done

# What the wheel asks for in Python is cffi alone, which is there.
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --target "$dir/site" --upgrade --no-deps --only-binary=:all: --python-version 3.12 pypccl==1.0.0
nm -D --undefined-only "$dir/site/pccl/libpccl.so" |
    awk '$2 ~ /^cu[A-Z]/ { print "int " $2 "(void) { return 100; }" }' > "$dir/stub/cuda.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$dir/stub/libcuda.so.1" "$dir/stub/cuda.c"

usr=$dir/root/usr python=$(basename "$(readlink "$dir/root/usr/bin/python3")")
cat > "$dir/python" << end
#!/bin/sh
export PYTHONHOME=$usr PYTHONPATH=$dir/site
exec $usr/lib64/ld-linux-x86-64.so.2 --library-path $usr/lib/x86_64-linux-gnu:$dir/stub --argv0 $usr/bin/$python $usr/bin/$python "\$@"
end
chmod +x "$dir/python"
"$dir/python" "$(dirname "$0")/pccl.py" probe
echo "$dir/python"
