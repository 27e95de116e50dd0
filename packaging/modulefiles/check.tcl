# tclsh packaging/modulefiles/check.tcl: run the module file with stand-ins for the commands of a
# module tool, and print its changes; fails if it does not set PATH.
set changes {}
foreach name {module-whatis conflict module setenv} {
    proc $name args "lappend ::changes \[concat $name \$args\]"
}
proc prepend-path {name value} { lappend ::changes [list prepend-path $name $value] }
proc is-loaded name { return 0 }
source [file join [file dirname [info script]] hpcgnn]
puts [join $changes \n]
ModulesHelp
exit [expr {[lsearch $changes {prepend-path PATH /opt/hpcgnn/bin}] < 0}]
