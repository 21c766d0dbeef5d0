"""The methods: parameters, synopsis, meter and mathematics, a file each."""
