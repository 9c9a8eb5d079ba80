#!/bin/bash
# Pack the environment that site.sh activates, with this package, into one file.  Once, on the login node:
#
#     bash slurm/pack.sh [FILE]
#
# Jobs of a site.sh that has IMAGE=FILE copy that file to their nodes (STAGE), and ranks read nothing else of the environment.
# FILE.sqsh is a squashfs, which needs mksquashfs; FILE.tar or FILE.tar.gz a tar.  Without FILE it is the IMAGE of site.sh.

script=pack.sh
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=slurm/launch.sh
source "$scripts/launch.sh"

case ${1:-} in
-h | --help)
    sed -nE '2,/^$/s/^# ?//p' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
read_site
image=${1:-${IMAGE:-}}
case $image in
'') refuse "the file is missing; bash slurm/$script FILE.sqsh, or IMAGE in site.sh" ;;
*.sqsh | *.squashfs) command -v mksquashfs > /dev/null || refuse "there is no mksquashfs (package squashfs-tools) to make $image; bash slurm/$script ${image%.*}.tar needs none" ;;
*.tar | *.tar.* | *.tgz) ;;
*) refuse "the name must end in .sqsh, .tar or .tar.gz, which says what the file is to be, got $image" ;;
esac

# Under another name until it is whole; that of a killed one stays at most.  It is as old as what was packed first.
part=$(dirname "$image")/part-$$-${image##*/}
trap 'rm -f "$part"' EXIT
began=$(date +%s.%N)
if ! { pack "$part" && touch --date="@$began" "$part" && mv --force --no-target-directory "$part" "$image"; }; then
    say "cannot pack the environment of $PYTHON into $image; see above"
    exit 74
fi
echo "$image: $(($(stat -Lc %s "$image") / 1000000)) MB; jobs use it with IMAGE and STAGE in site.sh"
